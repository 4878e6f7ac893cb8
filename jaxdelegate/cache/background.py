"""One call in a thread of its own: reading, hashing and loading need no interpreter lock."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def in_background(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """Start the call; its result or exception comes with the future."""
    executor = ThreadPoolExecutor(1)
    try:
        return executor.submit(function, *args, **kwargs)
    finally:
        executor.shutdown(wait=False)
