"""Answers with the TPU kernel that updates caches, which Pallas interprets here."""

import dataclasses
import functools
from pathlib import Path

import pytest
from jax.experimental import pallas as pl

from jaxdelegate import lm
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.op_lowering.slicing import cache_update_mosaic
from tests.support.language_models import language_bundle, language_model

PROMPTS = ["a long prompt", "b", "some words"]


def answers(path: Path, max_batch: int) -> list[str]:
    engine = lm.Engine(path, lm.Backend.CPU(), max_batch=max_batch, cache_dir=":nocache")
    return [found.text for found in engine.generate(PROMPTS, max_output_tokens=8)]


@pytest.mark.parametrize("max_batch", [1, 2])
def test_answers_are_the_same(
    max_batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(hidden=128, capacity=256)))
    want = answers(path, max_batch)
    assert all(want)
    path = path.rename(tmp_path / "again.litertlm")  # weights and programs of its own

    given, context = [], Compiler.context.func

    def as_on_a_tpu(self: Compiler) -> LoweringContext:
        return dataclasses.replace(context(self), kernels=KernelSet(mosaic=True))

    def updated(*arguments: object) -> object:
        given.append(arguments)
        return update_places(*arguments)

    update_places = cache_update_mosaic.update_places
    monkeypatch.setattr(Compiler, "context", property(as_on_a_tpu))
    monkeypatch.setattr(cache_update_mosaic, "update_places", updated)
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))
    assert answers(path, max_batch) == want
    assert {axis for *_, axis in given} == {2, 3}  # keys and values
