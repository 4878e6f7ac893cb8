"""Sequences of requests to a model with states: each has states of its own."""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from jaxdelegate.serve.records import Parameter, RequestError

S = TypeVar("S")
Id = int | str

_KNOWN = ("sequence_id", "sequence_start", "sequence_end")


@dataclasses.dataclass(frozen=True)
class Step:
    """A request's place in a sequence.

    Attributes:
        id: of the sequence; None: the request stands alone.
        is_start: whether the sequence begins with it, anew if it is known.
        is_end: whether the sequence ends after it.
    """

    id: Id | None
    is_start: bool = False
    is_end: bool = False


def step_of(parameters: Mapping[str, Parameter]) -> Step:
    """What a request's parameters say of its sequence.

    Raises:
        RequestError: 400: a value of another type, or a start or an end without an id.
    """
    start, end = (_flag(parameters, name) for name in ("sequence_start", "sequence_end"))
    number = parameters.get("sequence_id")
    if number is None:
        if start or end:
            name = "sequence_start" if start else "sequence_end"
            raise RequestError(f"{name}: the request has no sequence_id; give one")
        return Step(None)
    if isinstance(number, bool | float) or number in (0, ""):
        raise RequestError(
            f"sequence_id: want an integer that is not 0, or a string that is not empty, "
            f"got {number!r}"
        )
    return Step(number, start, end)


def check_stateless(parameters: Mapping[str, Parameter], model: str) -> None:
    """Refuse a sequence of a model without states.

    Raises:
        RequestError: 400: a parameter asks for one.
    """
    found = next((name for name in _KNOWN if name in parameters), None)
    if found is not None:
        raise RequestError(
            f"{found}: {model} has no states, so that its requests form no sequences; "
            "leave the parameter out"
        )


def _flag(parameters: Mapping[str, Parameter], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"{name}: want true or false, got {value!r}")
    return value


@dataclasses.dataclass
class _Session(Generic[S]):
    states: S
    used: float


class Sessions(Generic[S]):
    """The states of all open sequences of a model. One thread uses it."""

    def __init__(
        self,
        initial: S,
        *,
        session_count: int,
        session_idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without sequences.

        Args:
            initial: what every sequence begins with; nobody changes it.
            session_count: how many may be open.
            session_idle_s: seconds after which one that nobody used is dropped.
            clock: seconds that never go back.
        """
        self._initial, self._count, self._idle_s = initial, session_count, session_idle_s
        self._clock = clock
        # The one not used for longest is the first.
        self._open: collections.OrderedDict[Id, _Session[S]] = collections.OrderedDict()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def states(self, step: Step) -> S:
        """The states that a request runs from.

        Raises:
            RequestError: 400: a request without sequence_start, of a sequence that is not open;
                503: too many are open.
        """
        self._drop_idle()
        if step.id is None:
            return self._initial
        session = self._open.get(step.id)
        if session is None:
            self._check_new(step)
        return self._initial if session is None or step.is_start else session.states

    def keep(self, step: Step, states: S) -> None:
        """Keep what a request has left; not after the end of its sequence."""
        if step.id is None:
            return
        if step.is_end:
            self._open.pop(step.id, None)
            return
        self._open[step.id] = _Session(states, self._clock())
        self._open.move_to_end(step.id)

    def _check_new(self, step: Step) -> None:
        if not step.is_start:
            raise RequestError(
                f"sequence_id {step.id!r} is not open: it never began, has ended, or was dropped "
                f"after {self._idle_s:g} s without a request; begin it with sequence_start"
            )
        if len(self._open) >= self._count:
            raise RequestError(
                f"{self._count} sequences are open, which is the most (session_count); "
                "end some with sequence_end, or try again later",
                503,
            )

    def _drop_idle(self) -> None:
        last = self._clock() - self._idle_s
        while self._open and next(iter(self._open.values())).used < last:
            self._open.popitem(last=False)
