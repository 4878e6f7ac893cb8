"""What a bundle declares about its language model: if wrong, a ModelError that says what."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate import lm
from jaxdelegate.errors import ModelError
from tests.fuzz.field_edits import packed, unpacked
from tests.support.language_models import language_bundle, language_model


def sampled(**values: Any) -> Callable[[Any], None]:
    def edit(m: Any) -> None:
        m.sampler_params.type = m.sampler_params.TOP_P
        for name, value in values.items():
            setattr(m.sampler_params, name, value)

    return edit


def with_ids(field: str, *ids: int) -> Callable[[Any], None]:
    def edit(m: Any) -> None:
        token = getattr(m, field)
        (token.ids if field == "suppress_tokens" else token.token_ids.ids)[:] = ids

    return edit


def limited(m: Any) -> None:
    m.max_num_tokens = -5


def used(path: Path) -> None:
    with lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache") as engine:
        engine.generate(["abc", [1, 2, 3]], max_output_tokens=3)
        with engine.create_conversation(max_output_tokens=3) as conversation:
            conversation.send_message("hi")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (sampled(p=-1.0), "top_p: expected a number from 0 to 1, got -1"),
        (sampled(p=2.0), "top_p: expected a number from 0 to 1, got 2"),
        (sampled(p=float("nan")), "top_p: expected a number from 0 to 1, got nan"),
        (sampled(k=-1), "top_k: expected a positive number, got -1"),
        (sampled(temperature=-1.0), "temperature: expected at least 0, got -1"),
        (sampled(temperature=float("nan")), "temperature: expected at least 0, got nan"),
        (with_ids("suppress_tokens", 3, -1), "suppress_tokens: expected ids of at least 0"),
        (with_ids("start_token", 1000), "start_token: expected a token id below 261, got 1000"),
        (with_ids("start_token", -1), "start_token: expected a token id below 261, got -1"),
        (with_ids("pad_token", 2**31 - 1), "pad_token: expected a token id below 261"),
        (limited, "max_num_tokens: expected at least 0, got -5"),
    ],
)
def test_wrong_metadata(tmp_path: Path, edit: Callable[[Any], None], said: str) -> None:
    path = tmp_path / "wrong.litertlm"
    path.write_bytes(language_bundle(edit=edit))
    with pytest.raises(ModelError, match=rf"wrong\.litertlm: LlmMetadata: {said}"):
        used(path)


@pytest.mark.parametrize("kind", ["STRING", "RESOURCE", "VARIANT"])
def test_a_cache_that_has_no_numbers(tmp_path: Path, kind: str) -> None:
    model = unpacked(language_model())
    (decode,) = (s for s in model.signatureDefs if s.signatureKey == b"decode")
    (cache,) = (t for t in decode.inputs if t.name == b"kv_cache_k_0")
    tensor = model.subgraphs[decode.subgraphIndex].tensors[cache.tensorIndex]
    tensor.type = getattr(schema.TensorType, kind)
    path = tmp_path / "wrong.litertlm"
    path.write_bytes(language_bundle(model=packed(model)))
    with pytest.raises(ModelError, match=r"wrong\.litertlm.*'decode'.*'kv_cache_k_0'"):
        used(path)
