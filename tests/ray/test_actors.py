"""The actors of an evaluation, with a fake Ray."""

import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import InterpreterError
from jaxdelegate.evaluation.files import DataError
from jaxdelegate.evaluation.model import ImageModel
from jaxdelegate.evaluation.pipeline import Batch, Times
from jaxdelegate.ray.evaluation import RayBatches

BATCH = 4
PATHS = [Path(f"{i}.jpg") for i in range(39)]
STARTS = [*range(0, 39, BATCH)]


class DiedError(Exception):
    pass


class TaskError(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FakeRay:
    """Tasks are functions, which run when their results are fetched."""

    exceptions = types.SimpleNamespace(RayActorError=DiedError, RayTaskError=TaskError)

    def __init__(self, first: int) -> None:
        self._first = first  # which task ends first: 0, the oldest, or -1, the newest

    def wait(self, tasks: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        done = tasks.pop(self._first)
        assert num_returns == 1
        return [done], tasks

    def get(self, task: Callable[[], Any]) -> Any:
        return task()


def model(digest: str = "a") -> ImageModel:
    return ImageModel(
        interpreter=None,
        digest=digest,
        input_index=0,
        input_shape=(BATCH, 8, 8, 3),
        dtype=np.dtype(np.float32),
        outputs=(1,),
        output_shapes=((BATCH, 10),),
        output_dtypes=(np.dtype(np.float32),),
        operators=(),
        notes=(),
    )


class Actor:
    def __init__(self, describe: Callable[[], Any], run: Callable[..., Any]) -> None:
        self.describe = types.SimpleNamespace(remote=lambda: functools.partial(describe))
        self.run = types.SimpleNamespace(
            remote=lambda first, paths, *_: functools.partial(run, first, paths)
        )


def answer(first: int, paths: list[Path]) -> tuple[Batch, Times]:
    return Batch(first, (None,) * len(paths), ()), Times(busy=1)


def batches(
    run: Callable[..., Any] = answer, describe: Callable[[], Any] = model, first: int = -1
) -> RayBatches:
    return RayBatches(FakeRay(first), [Actor(describe, run), Actor(describe, run)])


@pytest.mark.parametrize("oldest_or_newest", [0, -1])
def test_results_are_in_order(oldest_or_newest: int) -> None:
    source = batches(answer, model, oldest_or_newest)
    results = [*source.run(PATHS)]
    assert [batch.first for batch in results] == STARTS
    assert [len(batch.errors) for batch in results] == [4] * 9 + [3]
    assert source.times.busy == 10
    assert [batch.first for batch in batches().run(PATHS, 8)] == STARTS[2:]


def test_an_actor_that_dies_too_often_is_an_error() -> None:
    def run(first: int, paths: list[Path]) -> Any:
        if first == 8:
            raise DiedError("out of memory")
        return answer(first, paths)

    message = "died repeatedly with the batch that begins with 8.jpg: out of memory"
    with pytest.raises(InterpreterError, match=message):
        list(batches(run).run(PATHS))


def test_an_error_comes_after_the_batches_before_it() -> None:
    def run(first: int, paths: list[Path]) -> Any:
        if first == 8:
            raise TaskError(InterpreterError("an operator failed"))
        return answer(first, paths)

    results = batches(run).run(PATHS)
    assert [next(results).first, next(results).first] == [0, 4]
    with pytest.raises(InterpreterError, match="an operator failed"):
        next(results)


def test_actors_that_cannot_open_the_model() -> None:
    def die() -> None:
        raise DiedError("no memory")

    with pytest.raises(InterpreterError, match="died repeatedly while it opened the model: no mem"):
        _ = batches(answer, die).model


def test_actors_with_different_models() -> None:
    digests = iter("ab")
    source = batches(answer, lambda: model(next(digests)), 0)
    with pytest.raises(DataError, match="two actors have opened different models"):
        list(source.run(PATHS))
