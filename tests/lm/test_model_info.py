"""`ModelInfo`; the values wanted are those of litert_lm 0.18.1, unless a test says otherwise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import GenerationError, ModelError, OptionError
from jaxdelegate.testing import ModelBuilder
from tests.support.bundles import TYPES, Part, gestures, litertlm, llm_metadata, model_part
from tests.support.language_models import drafter_bundle, language_bundle, language_model
from tests.support.text_encoders import embedding_bundle

TEXT, VISION, AUDIO, VIDEO = lm.LiteRtLmModality


@pytest.fixture
def info(tmp_path: Path) -> Callable[[bytes], lm.ModelInfo]:
    def opened(bundle: bytes) -> lm.ModelInfo:
        path = tmp_path / "model.litertlm"
        path.write_bytes(bundle)
        return lm.ModelInfo(path)

    return opened


def images(tokens: int, key: str = "vision") -> bytes:
    """A model that returns `tokens` embeddings."""
    builder = ModelBuilder()
    x, y = builder.input((1, tokens, 4)), builder.tensor((1, tokens, 4))
    builder.operator("ADD", [x, builder.constant(np.ones(4, np.float32))], [y])
    builder.outputs(y)
    builder.signature(key, {"images": x}, {"features": y})
    return builder.build()


def test_a_model_that_declares_nothing(info: Any) -> None:
    with info(language_bundle()) as found:
        assert found.model_type == lm.ModelType.LLM
        assert (found.is_llm_model, found.is_embedding_model) == (True, False)
        assert found.input_modalities == lm.SupportedModalities(
            text=True, vision=False, audio=False, video=False
        )
        assert (found.max_context_tokens, found.is_dynamic_context) == (128, False)
        assert found.min_runtime_version is found.vision_signature_selection is None
        assert found.max_vision_token_budget == -1
        assert found.embedding is None
        assert found.llm.default_sampler_params == lm.SamplerConfig(top_p=0, temperature=0)
        assert not found.llm.supports_thinking()
        assert not found.llm.supports_function_calling()
        assert not found.llm.has_speculative_decoding_support()
        assert not found.llm.is_dynamic_context


def test_what_is_declared(info: Any) -> None:
    def edit(m: Any) -> None:
        m.supports_thinking = m.supports_function_calling = True
        m.min_runtime_version, m.max_num_tokens = "0.12.0", 1000
        m.sampler_params.type, m.sampler_params.k = m.sampler_params.TOP_P, 7
        m.sampler_params.p, m.sampler_params.temperature = 0.5, 0.25
        m.sampler_params.seed = 3

    found = info(language_bundle(edit=edit))
    assert found.llm.supports_thinking()
    assert found.llm.supports_function_calling()
    assert found.llm.default_sampler_params == lm.SamplerConfig(7, 0.5, 0.25)
    assert (found.min_runtime_version, found.max_context_tokens) == ("0.12.0", 1000)


def test_a_drafter(info: Any) -> None:
    assert info(drafter_bundle()).llm.has_speculative_decoding_support()


def test_a_number_of_tokens_that_stands_for_others(info: Any) -> None:
    prime = language_model(capacity=131)
    found = info(language_bundle(model=prime))
    assert (found.max_context_tokens, found.is_dynamic_context) == (131, True)
    found = info(language_bundle(model=prime, edit=lambda m: setattr(m, "max_num_tokens", 100)))
    assert (found.max_context_tokens, found.is_dynamic_context) == (100, False)


def test_images_and_sound(info: Any) -> None:
    def edit(m: Any) -> None:
        m.llm_model_type.gemma4.max_num_patches = 630

    others = {
        "tf_lite_vision_encoder": images(64),
        "tf_lite_vision_adapter": images(17),
        "tf_lite_audio_encoder_hw": images(5),
    }
    found = info(language_bundle(others=others, edit=edit))
    assert found.input_modalities == lm.SupportedModalities(
        text=True, vision=True, audio=True, video=False
    )
    assert found.vision_signature_selection == found.llm.vision_signature_selection == [17, 64]
    assert found.max_vision_token_budget == found.llm.max_vision_token_budget == 70
    assert found.supported_backends_for_modality(VISION) == ["cpu", "gpu"]
    assert found.supported_backends_for_modality(VIDEO) == []
    found = info(language_bundle(edit=lambda m: setattr(edited(m), "pooling_kernel_size", 2)))
    assert (found.max_vision_token_budget, found.vision_signature_selection) == (315, None)


def edited(m: Any) -> Any:
    m.llm_model_type.gemma4.max_num_patches = 1260
    return m.llm_model_type.gemma4


@pytest.mark.parametrize(
    ("declared", "want"),
    [
        ({}, ["cpu", "gpu"]),
        ({"backend_constraint": "cpu"}, ["cpu"]),
        ({"backend_constraint": "npu,gpu"}, ["npu", "gpu"]),
        ({"backend_constraint": "GPU_artisan"}, ["gpu"]),
        ({"backend_constraint": "nonsense"}, []),
    ],
)
def test_backends(info: Any, declared: dict[str, str], want: list[str]) -> None:
    section: Part = model_part("tf_lite_prefill_decode", language_model(), **declared)
    found = info(litertlm([(TYPES.LlmMetadataProto, {}, llm_metadata()), section]))
    assert found.supported_backends_for_modality(TEXT) == want
    assert found.supported_backends_for_modality(AUDIO) == []
    for ask in (found.npu_brand_for_modality, found.soc_name_for_modality):
        with pytest.raises(OptionError, match="NPUs are not supported"):
            ask(TEXT)


def test_a_text_encoder(info: Any, tmp_path: Path) -> None:
    """LiteRT-LM returns 16 and [1] here: the size and the tokens of the embedder."""
    found = info(embedding_bundle(edit=lambda m: setattr(m, "min_runtime_version", "0.18.0")))
    assert found.model_type == lm.LiteRtLmModelType.EMBEDDING
    assert found.llm is None
    assert (found.embedding.dimension, found.embedding.signature_selection) == (12, [8, 16])
    assert (found.max_context_tokens, found.min_runtime_version) == (16, "0.18.0")
    assert not found.is_dynamic_context
    with lm.EmbeddingEngine(tmp_path / "model.litertlm", cache_dir=":nocache") as engine:
        assert engine.size == found.embedding.dimension


def test_other_bundles(info: Any) -> None:
    found = info(gestures())
    assert (found.model_type, found.llm, found.embedding) == (lm.ModelType.UNKNOWN, None, None)
    assert found.max_context_tokens == 0


def test_errors(info: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        lm.ModelInfo(tmp_path / "absent")
    with pytest.raises(ModelError, match="expected a bundle"):
        info(b"something else")
    found = info(language_bundle())
    found.close()
    with pytest.raises(GenerationError, match="the ModelInfo is closed"):
        _ = found.model_type
