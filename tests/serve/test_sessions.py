"""Sequences: the states that a request starts from, and refused requests."""

from typing import Any

import pytest

from jaxdelegate.serve.clients import Client, RequestError
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2.sessions import Sessions, Step, check_stateless, step_of

A, B = Client.of("1.1.1.1", None), Client.of("2.2.2.2", None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(**options: Any) -> tuple[Sessions[str], Clock]:
    clock = Clock()
    given = {
        "session_count": 2,
        "sessions_per_client": 2,
        "session_idle_s": 10.0,
        "session_hold_s": 10.0,
        **options,
    }
    return Sessions("fresh", ServeSettings(**given), clock), clock


def follow(sessions: Sessions[str], step: Step, after: str, client: Client = A) -> str:
    before = sessions.states(step, client)
    sessions.keep(step, after, client)
    return before


@pytest.mark.parametrize(
    ("parameters", "step"),
    [
        ({}, Step(None)),
        ({"timeout": 3}, Step(None)),
        ({"sequence_id": 7}, Step(7)),
        ({"sequence_id": "a", "sequence_start": True}, Step("a", is_start=True)),
        ({"sequence_id": -1, "sequence_end": True}, Step(-1, is_end=True)),
        ({"sequence_start": False}, Step(None)),
    ],
)
def test_steps(parameters: dict[str, Any], step: Step) -> None:
    assert step_of(parameters) == step


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sequence_id": 0}, "sequence_id: expected a nonzero integer or a nonempty string"),
        ({"sequence_id": ""}, "sequence_id: expected"),
        ({"sequence_id": 1.0}, "sequence_id: expected"),
        ({"sequence_start": True}, "sequence_start: the request has no sequence_id"),
        ({"sequence_end": True}, "sequence_end: the request has no sequence_id"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        step_of(parameters)
    assert error.value.status == 400


def test_a_model_without_states_refuses_sequences() -> None:
    check_stateless({"timeout": 5}, "net")
    with pytest.raises(RequestError, match="sequence_id: net has no states"):
        check_stateless({"sequence_id": 1}, "net")


def test_each_sequence_has_its_states() -> None:
    sessions, _ = opened()
    assert follow(sessions, Step("a", is_start=True), "a1") == "fresh"
    assert follow(sessions, Step("b", is_start=True), "b1") == "fresh"
    assert follow(sessions, Step(None), "lost") == "fresh"
    assert follow(sessions, Step("a"), "a2") == "a1"
    assert follow(sessions, Step("b"), "b2") == "b1"
    assert follow(sessions, Step("a", is_start=True), "a3") == "fresh"
    assert follow(sessions, Step("a", is_end=True), "a4") == "a3"
    assert len(sessions) == 1
    with pytest.raises(RequestError, match=r"'a' is not open.*start it with sequence_start"):
        sessions.states(Step("a"), A)


def test_a_number_and_its_text_are_two_sequences() -> None:
    sessions, _ = opened()
    follow(sessions, Step(1, is_start=True), "number")
    follow(sessions, Step("1", is_start=True), "text")
    assert follow(sessions, Step(1), "") == "number"


def test_a_request_that_failed_leaves_the_states() -> None:
    sessions, _ = opened()
    follow(sessions, Step("a", is_start=True), "a1")
    assert sessions.states(Step("a"), A) == "a1"  # its states are not kept
    assert sessions.states(Step("a"), A) == "a1"


def test_too_many_sequences() -> None:
    sessions, clock = opened()
    follow(sessions, Step("a", is_start=True), "a1")
    clock.now = 5.0
    follow(sessions, Step("b", is_start=True), "b1")
    with pytest.raises(RequestError, match=r"2 sequences of this client .*per_client") as error:
        sessions.states(Step("c", is_start=True), A)
    assert error.value.status == 503
    follow(sessions, Step("a", is_start=True), "a2")  # restarts: the count does not change
    clock.now = 15.5  # a and b were used 10.5 seconds ago
    assert follow(sessions, Step("c", is_start=True), "c1") == "fresh"
    assert len(sessions) == 1


def test_use_keeps_a_sequence_open() -> None:
    sessions, clock = opened()
    follow(sessions, Step("a", is_start=True), "a1")
    for clock.now in (9.0, 18.0, 27.0):
        follow(sessions, Step("a"), "a1")
    clock.now = 38.0
    with pytest.raises(RequestError, match=r"dropped \(10 s without a request"):
        sessions.states(Step("a"), A)


def test_a_sequence_of_one_request_is_not_stored() -> None:
    sessions, _ = opened()
    follow(sessions, Step("a", is_start=True, is_end=True), "a1")
    assert len(sessions) == 0


def test_a_new_sequence_replaces_the_least_recently_used() -> None:
    """Not if that was used just now, or if the new one fails."""
    sessions, clock = opened(session_hold_s=1.0, sessions_per_client=9)
    for clock.now, name in ((0.0, "a"), (2.0, "b"), (3.0, "a")):
        follow(sessions, Step(name, is_start=True), name)
    assert sessions.states(Step("c", is_start=True), A) == "fresh"  # fails: its states are not kept
    assert follow(sessions, Step("b"), "b") == "b"
    with pytest.raises(RequestError, match=r"2 sequences are open, .*session_count.* 1 s") as error:
        sessions.states(Step("c", is_start=True), A)
    assert error.value.status == 503
    clock.now = 4.5
    follow(sessions, Step("c", is_start=True), "c")
    with pytest.raises(RequestError, match=r"'a' is not open.*or 1 s if others need its place"):
        sessions.states(Step("a"), A)
    assert follow(sessions, Step("b"), "b") == "b"


def test_a_client_with_too_many_does_not_replace_those_of_others() -> None:
    sessions, clock = opened(session_count=100, sessions_per_client=10, session_hold_s=1.0)
    follow(sessions, Step("mine", is_start=True), "mine", A)
    refused = 0
    for number in range(1, 1000):
        clock.now = number / 100
        try:
            follow(sessions, Step(number, is_start=True), "x", B)
        except RequestError:
            refused += 1
    assert refused > 800
    assert len(sessions) == 11
    assert follow(sessions, Step("mine"), "", A) == "mine"
    follow(sessions, Step("other", is_start=True), "", A)
    clock.now = 30.0
    sessions.states(Step(None), A)
    assert len(sessions) == 0


def test_the_end_of_a_sequence_reduces_its_client_s_count() -> None:
    sessions, _ = opened(sessions_per_client=1)
    for name in "abc":
        follow(sessions, Step(name, is_start=True), "", A)
        follow(sessions, Step(name, is_end=True), "", A)
    follow(sessions, Step("d", is_start=True, is_end=True), "", A)
    assert len(sessions) == 0


def test_a_sequence_belongs_to_the_client_that_began_it() -> None:
    """The key from any address, or else the address; the same id of others is another sequence."""
    clients = [A, B, A._replace(key="k"), B._replace(key="other")]
    sessions, clock = opened(session_count=9, sessions_per_client=1)
    for client in clients:
        with pytest.raises(RequestError, match=r"7 is not open: this client .* did not start it"):
            sessions.states(Step(7), client)
        assert follow(sessions, Step(7, is_start=True), str(client), client) == "fresh"
    for client in clients:
        assert follow(sessions, Step(7), str(client), client) == str(client)
    roaming = B._replace(key="k")
    assert follow(sessions, Step(7, is_end=True), "", roaming) == str(clients[2])
    assert len(sessions) == 3
    clock.now = 20.0
    assert follow(sessions, Step(8, is_start=True), "", roaming) == "fresh"


def test_an_address_with_many_keys_cannot_shut_out_others() -> None:
    """It has more than a client may have, so its own go first, even those that are in use."""
    sessions, _ = opened(session_count=10, sessions_per_client=3)
    for number in range(3):
        follow(sessions, Step(number, is_start=True), "mine", A)
    for number in range(7):
        follow(sessions, Step(1, is_start=True), "x", B._replace(key=f"invented {number}"))
    with pytest.raises(RequestError, match="10 sequences are open"):
        sessions.states(Step(1, is_start=True), B._replace(key="one more"))
    for number in range(3):
        third = Client.of("3.3.3.3", f"key {number}")
        assert follow(sessions, Step(1, is_start=True), "", third) == "fresh"
        assert follow(sessions, Step(number), "mine", A) == "mine"
    with pytest.raises(RequestError, match="1 is not open"):
        sessions.states(Step(1), B._replace(key="invented 0"))


def test_clients_by_address_and_key() -> None:
    keyed, address = Client.of("1.1.1.1", "Bearer secret"), Client.of("1.1.1.1", "")
    assert "secret" not in str(keyed)
    assert (keyed.owner, address.owner) == (Client("", keyed.key), address)
    assert keyed == Client.of("1.1.1.1", "Bearer secret") != Client.of("1.1.1.1", "Bearer other")
    assert len(Client.of("1" * 1000, None).address) == 64
