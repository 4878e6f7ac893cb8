"""Calls in threads of their own: reading, hashing and loading need no interpreter lock."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Start(Protocol):
    """Starts a call; its result or exception comes with the future."""

    def __call__(
        self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Future[_T]:
        """Start `function(*args, **kwargs)`."""


class Background:
    """Calls in the order in which they came, no more at a time than leave the caller a core."""

    def __init__(self) -> None:
        """Begin without threads."""
        cores = len(os.sched_getaffinity(0))
        self._executor = ThreadPoolExecutor(max(1, cores - 1))

    def __call__(
        self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Future[_T]:
        """Start a call, or put it behind those that have not ended."""
        return self._executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Take no more calls; threads end with those that there are."""
        self._executor.shutdown(wait=False)


def in_background(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """Start a call at once, in a thread of its own."""
    start = Background()
    try:
        return start(function, *args, **kwargs)
    finally:
        start.close()
