"""The actors of an evaluation, with a fake Ray."""

import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import InterpreterError
from jaxdelegate.evaluation.errors import DataError
from jaxdelegate.evaluation.model import ImageModel
from jaxdelegate.ray.evaluation import _Actors

COUNT, BATCH = 2, 4
BATCHES = {start: [Path(f"{start}.jpg")] for start in range(0, 40, BATCH)}


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
            remote=lambda *arguments: functools.partial(run, self, *arguments)
        )


def actors(
    run: Callable[..., Any], describe: Callable[[], Any] = model, first: int = -1
) -> _Actors:
    return _Actors(FakeRay(first), lambda: Actor(describe, run), COUNT)


@pytest.mark.parametrize("oldest_or_newest", [0, -1])
def test_results_are_in_order(oldest_or_newest: int) -> None:
    pool = actors(lambda _actor, first, _paths, more: (first, more), model, oldest_or_newest)
    assert list(pool.in_order(BATCHES, "more")) == [(first, "more") for first in BATCHES]


def test_a_dead_actor_is_replaced_and_no_batch_is_lost() -> None:
    ran: list[int] = []
    dead: set[Actor] = set()

    def run(actor: Actor, first: int, _paths: list[Path]) -> int:
        if first == 12 and not dead:
            dead.add(actor)
        if actor in dead:
            raise DiedError
        ran.append(first)
        return first

    pool = actors(run)
    assert list(pool.in_order(BATCHES)) == list(BATCHES)
    assert sorted(ran) == list(BATCHES)
    assert len(pool._alive) == COUNT
    assert not dead & {*pool._alive, *pool._free}


def test_a_batch_that_kills_its_actors_is_an_error() -> None:
    def run(_actor: Actor, first: int, _paths: list[Path]) -> int:
        if first == 8:
            raise DiedError("out of memory")
        return first

    message = "3 actors died with the batch that begins with 8.jpg: out of memory"
    with pytest.raises(InterpreterError, match=message):
        list(actors(run).in_order(BATCHES))


def test_an_error_comes_after_the_batches_before_it() -> None:
    def run(_actor: Actor, first: int, _paths: list[Path]) -> int:
        if first == 8:
            raise TaskError(InterpreterError("an operator failed"))
        return first

    results = actors(run).in_order(BATCHES)
    assert [next(results), next(results)] == [0, 4]
    with pytest.raises(InterpreterError, match="an operator failed"):
        next(results)


def test_actors_that_cannot_open_the_model() -> None:
    def die() -> None:
        raise DiedError("no memory")

    with pytest.raises(InterpreterError, match="5 actors died while they opened the model"):
        actors(lambda *_: None, die).open()


def test_actors_with_different_models() -> None:
    digests = iter("ab")
    pool = actors(lambda _actor, first, _paths: first, lambda: model(next(digests)), 0)
    with pytest.raises(DataError, match="two actors have opened different models"):
        list(pool.in_order(BATCHES))
