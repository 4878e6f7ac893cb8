"""Sequences of requests to a model with states: each sequence has its own states."""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from jaxdelegate.serve.clients import Client, RequestError
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2.requests import Parameter

S = TypeVar("S")
Id = int | str
_Key = tuple[Client, Id]  # a sequence belongs to the owner that began it

_KNOWN = ("sequence_id", "sequence_start", "sequence_end")


@dataclasses.dataclass(frozen=True)
class Step:
    id: Id | None  # the sequence; None: the request belongs to none
    is_start: bool = False  # starts the sequence, or restarts it
    is_end: bool = False


def step_of(parameters: Mapping[str, Parameter]) -> Step:
    """Refuse an id of 0 or "", and a start or end without an id."""
    number, *flags = (parameters.get(name) for name in _KNOWN)
    start, end = map(bool, flags)
    if number is None:
        if start or end:
            name = "sequence_start" if start else "sequence_end"
            raise RequestError(f"{name}: the request has no sequence_id; give one")
        return Step(None)
    if isinstance(number, float) or number in (0, ""):
        raise RequestError(
            f"sequence_id: expected a nonzero integer or a nonempty string, got {number!r}"
        )
    return Step(number, start, end)


def check_stateless(parameters: Mapping[str, Parameter], model: str) -> None:
    """Refuse sequence parameters for a model without states."""
    name = next((name for name in _KNOWN if name in parameters), None)
    if name is not None:
        raise RequestError(
            f"{name}: {model} has no states, so its requests cannot form sequences; "
            "remove the parameter"
        )


@dataclasses.dataclass
class _Session(Generic[S]):
    states: S
    used: float
    client: Client  # that used it last


@dataclasses.dataclass(frozen=True)
class _Full:
    """A limit that is reached, and the least recently used sequence that counts towards it."""

    oldest: _Key
    what: str
    limit: str
    is_held: bool = True  # the sequence is not replaced if it was used just now


class Sessions(Generic[S]):
    """The states of all open sequences of a model. Not thread-safe.

    Each client has its own ids. If a client has too many, a new sequence replaces its least
    recently used one; if there are too many in total, that of the address that has most. One that
    was used only just now is not replaced, unless an address with fewer needs the place and the
    other one has more than a client may have: keys are not checked, so it may have many.
    """

    def __init__(
        self,
        initial: S,
        settings: ServeSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Every sequence starts with `initial`, which is never modified."""
        self._initial, self._clock = initial, clock
        self._count, self._per_client = settings.session_count, settings.sessions_per_client
        self._idle_s, self._hold_s = settings.session_idle_s, settings.session_hold_s
        self._counts: collections.Counter[Client | str] = collections.Counter()  # also by address
        # In the order of last use.
        self._open: collections.OrderedDict[_Key, _Session[S]] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def states(self, step: Step, client: Client) -> S:
        """The states that a client's request starts from.

        A RequestError of status 400 if the sequence is not open and the request does not start it,
        503 if too many sequences are open.
        """
        self._drop_idle()
        if step.id is None:
            return self._initial
        session = self._open.get((client.owner, step.id))
        if session is None:
            self._check_new(step, client)
        return self._initial if session is None or step.is_start else session.states

    def keep(self, step: Step, states: S, client: Client) -> None:
        """Keep the states after a request, unless it ends its sequence."""
        if step.id is None:
            return
        key = client.owner, step.id
        if key in self._open:
            self._drop(key)
        elif not step.is_end and (full := self._full(client)) is not None:
            self._drop(full.oldest)
        if not step.is_end:
            self._open[key] = _Session(states, self._clock(), client)
            self._add(client, 1)

    def _check_new(self, step: Step, client: Client) -> None:
        if not step.is_start:
            raise RequestError(
                f"sequence_id {step.id!r} is not open: this client (its API key, or else its "
                "address) did not start it, or it has ended, or was dropped "
                f"({self._idle_s:g} s without a request, or {self._hold_s:g} s if others need its "
                "place); start it with sequence_start"
            )
        full = None if step.is_end else self._full(client)
        held = self._clock() - self._hold_s
        if full is not None and full.is_held and self._open[full.oldest].used > held:
            raise RequestError(
                f"{full.what}, which is the limit ({full.limit}), and all were used in the last "
                f"{self._hold_s:g} s; end some with sequence_end, or try again later",
                503,
            )

    def _full(self, client: Client) -> _Full | None:
        """The limit that one more sequence of a client would exceed; None: none."""
        if self._counts[client.owner] >= self._per_client:
            oldest = next(key for key in self._open if key[0] == client.owner)
            what = f"{self._per_client} sequences of this client are open"
            return _Full(oldest, what, "sessions_per_client")
        if len(self._open) >= self._count:
            return self._full_in_total(client)
        return None

    def _full_in_total(self, client: Client) -> _Full:
        addresses = {session.client.address for session in self._open.values()}
        address = max(addresses, key=self._counts.__getitem__)
        most, own = self._counts[address], self._counts[client.address] + 1
        oldest = next(key for key, s in self._open.items() if s.client.address == address)
        is_held = most <= max(self._per_client, own)
        return _Full(oldest, f"{self._count} sequences are open", "session_count", is_held)

    def _drop_idle(self) -> None:
        last = self._clock() - self._idle_s
        while self._open and next(iter(self._open.values())).used < last:
            self._drop(next(iter(self._open)))

    def _drop(self, key: _Key) -> None:
        self._add(self._open.pop(key).client, -1)

    def _add(self, client: Client, count: int) -> None:
        for who in (client.owner, client.address):
            self._counts[who] += count
            if not self._counts[who]:
                del self._counts[who]
