"""Caches in reduced precision and in int8, by an option, and on GPUs by `compute_dtype`."""

import dataclasses
import re
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.language_model import LanguageModel, cache_dtype
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from tests.support.language_models import drafter, embedders, language_bundle, language_model

INT8, PARTS = "int8_per_token_head", ("embedder", "per_layer_embedder")
KINDS = "float16", "bfloat16", INT8
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
FLOAT32 = np.dtype(np.float32)


@dataclasses.dataclass
class Options:
    """What `cache_dtype` asks of a compiler."""

    platform: str
    storage: np.dtype = FLOAT32
    checks_precision: bool = False

    @property
    def context(self) -> Any:
        return mock.Mock(precision=PrecisionPolicy(storage=self.storage))


def test_only_gpus_that_compute_in_reduced_precision_have_such_caches() -> None:
    for half in HALVES:
        assert chosen(Options("gpu", half)) == half
        assert chosen(Options("gpu", half, checks_precision=True)) is None
        assert chosen(Options("cpu", half)) is chosen(Options("tpu", half)) is None
    assert chosen(Options("gpu")) is None


def chosen(options: Any, asked: str = "auto") -> np.dtype | None:
    return cache_dtype(options, asked)


def test_an_option_chooses_on_any_device() -> None:
    assert chosen(Options("gpu", HALVES[0]), "float32") == FLOAT32
    assert chosen(Options("tpu"), "bfloat16") == HALVES[1]
    assert chosen(Options("cpu"), INT8) == np.int8
    with pytest.raises(OptionError, match=r"kv_cache_dtype: expected .*'float32'.*'fp8'"):
        chosen(Options("cpu"), "fp8")


def test_caches_of_other_types_stay(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    parts = {f"tf_lite_{part}": m for part, m in zip(PARTS, embedders(), strict=True)}
    model = language_model(has_embedders=True, is_gemma4=True)
    path.write_bytes(language_bundle(model=model, others=parts))
    with pytest.raises(OptionError, match="no caches that could be float16; leave it out"):
        lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache", kv_cache_dtype="float16")


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_updated_in_place(slots: int, kind: str) -> None:
    content = language_model(hidden=64, capacity=256)
    options = {"platform": "cpu"}
    model = LanguageModel(content, "model", {}, options, None, ":nocache", kv_cache_dtype=kind)
    runner = ModelRunner(model, slots, frozenset())
    for slot in range(slots):
        runner.prefill(slot, [4, 5])
        runner.begin(slot, Request((), 8, SamplingParams()))
    runner.decode(2)
    dtype = model.graph.cache_dtype
    dtypes = [np.dtype(array.dtype) for array in runner.cache.arrays]
    assert dtypes == ([dtype, FLOAT32] * 2 if kind == INT8 else [dtype] * 2)
    program, _ = model.program(runner.specs.decode(runner.variant(0), 256))
    text, ahead = program.executable.as_text(), "" if slots == 1 else f"{slots},"
    name = {"float16": "f16", "bfloat16": "bf16", "int8": "s8"}[str(dtype)]
    for shape in (f"{ahead}1,1,256,64", f"{ahead}1,1,64,256"):
        assert f"{name}[{shape}]" in text
        assert not re.search(rf"= {name}\[{shape}\][^=]* copy\(", text)


@pytest.mark.parametrize("model", [{}, {"is_recurrent": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_float32_but_for_rounding(
    kind: str, model: dict[str, bool], tmp_path: Path
) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(**model)))
    prompts = ["a prompt", "What is 2 + 3?", "x"]
    found = []
    for asked in (kind, "auto"):
        options: Any = {"cache_dir": ":nocache", "kv_cache_dtype": asked}
        with (
            lm.Engine(path, lm.Backend.CPU(), max_batch=2, **options) as engine,
            engine.create_session() as session,
        ):
            answers = engine.generate(prompts, max_output_tokens=12, log_probabilities=True)
            session.run_prefill(["a prompt"])
            found.append((engine.cache_bytes, answers, session.run_text_scoring(["yes, it is"])))
    (small, mine, scores), (large, others, wanted) = found
    assert small < large
    if not model:  # int8 has a scale for 16 elements
        assert large == (3.2 if kind == INT8 else 2) * small
    # Logits are sums of several rounded values.
    most = 0.1 if kind == INT8 else 10 * float(ml_dtypes.finfo(np.dtype(kind)).eps)
    np.testing.assert_allclose(scores.scores, wanted.scores, rtol=most)
    for a, b in zip(mine, others, strict=True):
        pairs = enumerate(zip(a.token_ids, b.token_ids, strict=False))
        same = next((i for i, (x, y) in pairs if x != y), len(a.token_ids))
        np.testing.assert_allclose(
            a.log_probabilities[:same], b.log_probabilities[:same], atol=most
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_reads_them(kind: str, tmp_path: Path) -> None:
    own, more = embedders()
    parts = {"embedder": own, "per_layer_embedder": more, "mtp_drafter": drafter()}
    model = language_model(has_embedders=True, verify=4)
    others = {f"tf_lite_{part}": content for part, content in parts.items()}
    path, tokens = tmp_path / "model.litertlm", []
    path.write_bytes(language_bundle(model=model, others=others))
    for drafts in (False, True):
        options: dict[str, Any] = {"enable_speculative_decoding": drafts, "cache_dir": ":nocache"}
        with lm.Engine(path, lm.Backend.CPU(), kv_cache_dtype=kind, **options) as engine:
            assert engine.graph.dtype("kv_cache_k_0") == engine.graph.cache_dtype
            tokens.append([c.token_ids for c in engine.generate(["a", "b"], max_output_tokens=16)])
    assert tokens[0] == tokens[1]
