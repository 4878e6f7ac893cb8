"""Answers with the GPU kernel of a decode step's attention, which Pallas interprets here."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

from jaxdelegate import lm
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.lm import language_model
from jaxdelegate.lm.completions import Completion
from jaxdelegate.op_lowering.fused import decode_attention_triton
from jaxdelegate.op_lowering.rule import KernelSet
from tests.support.decoder_families import FAMILIES, decoder
from tests.support.language_models import language_bundle
from tests.support.windows import executor_metadata, windowed_model

_CONTEXT = Compiler.context.func
PROMPTS = [[7, 8, 9], [*range(20, 45)], [5]]


def completions(path: Path, max_batch: int) -> Sequence[Completion]:
    engine = lm.Engine(path, lm.Backend.CPU(), max_batch=max_batch, cache_dir=":nocache")
    return engine.generate(PROMPTS, max_output_tokens=12, log_probabilities=True)


Kernels = list[decode_attention_triton.Form]


def use(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Compilers after this have a context with changes."""
    changed = functools.partial(dataclasses.replace, **changes)
    context = _CONTEXT
    monkeypatch.setattr(Compiler, "context", property(lambda self: changed(context(self))))


def check(
    path: Path, max_batch: int, monkeypatch: pytest.MonkeyPatch, atol: float = 1e-5
) -> Kernels:
    """Answers with the kernel are those of XLA's operators; returns the kernels' forms."""
    use(monkeypatch, kernels=KernelSet())
    want = completions(path, max_batch)
    use(monkeypatch, platform="gpu", kernels=KernelSet(triton=True))
    found, attention = Kernels(), decode_attention_triton.decode_attention

    def noted(form: decode_attention_triton.Form, arrays: Any) -> Any:
        found.append(form)
        return attention(form, arrays)

    monkeypatch.setattr(decode_attention_triton, "decode_attention", noted)
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))
    path = path.rename(path.with_name("again.litertlm"))  # weights and programs of its own
    for got, wanted in zip(completions(path, max_batch), want, strict=True):
        assert got.token_ids == wanted.token_ids
        scores = [np.array(each.log_probabilities) for each in (got, wanted)]
        np.testing.assert_allclose(*scores, rtol=0, atol=atol)
    return found


CASES = [(name, slots) for name in FAMILIES for slots in (1, 3)]
FAST = ("qwen3", 3), ("gemma3", 1)


@pytest.mark.parametrize(
    ("name", "max_batch"),
    [c if c in FAST else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_answers_are_the_same(
    name: str, max_batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, path = FAMILIES[name], tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=decoder(family)))
    found = check(path, max_batch, monkeypatch)
    assert len({*found}) == 1
    assert len(found) % family.layers == 0
    form = found[0]
    assert (form.heads * form.queries, form.heads, form.size) == (
        family.heads,
        family.groups,
        family.size,
    )
    assert form.cap == pytest.approx(family.cap)
    assert all(form.epsilons[:2]) == family.norms
    assert form.rotates == family.rotates
    assert (form.hidden < 1e4) == (family.norms or family.cap > 0)  # not all of a window's mask


@pytest.mark.parametrize("max_batch", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_ring_of_entries(max_batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later tokens overwrite earlier ones."""
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=windowed_model(), sections=[executor_metadata()]))
    # This model amplifies rounding: XLA's operators and the CPU's kernels differ by 4e-5, too.
    assert {form.length for form in check(path, max_batch, monkeypatch, 4e-5)} == {16, 64}


@pytest.mark.parametrize(
    ("dtype", "atol"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 1.6e-2), (np.int8, 5e-2)]
)
def test_short_caches(
    dtype: Any, atol: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """int8 ones have scales; entries whose rounding differs are a step apart."""
    monkeypatch.setattr(language_model, "cache_dtype", lambda *_: np.dtype(dtype))
    dtypes, called = set(), decode_attention_triton.decode_attention

    def noted(form: decode_attention_triton.Form, arrays: Any) -> Any:
        results = called(form, arrays)
        dtypes.update(array.dtype for array in (arrays["keys"], arrays["values"], *results[1:]))
        return results

    monkeypatch.setattr(decode_attention_triton, "decode_attention", noted)
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=decoder(FAMILIES["qwen3"])))
    assert check(path, 3, monkeypatch, atol)
    scales = {np.dtype(np.float32)} if dtype is np.int8 else set()
    assert dtypes == {np.dtype(dtype)} | scales
