"""Sequences: the states that a request starts from, and refused requests."""

from typing import Any

import pytest

from jaxdelegate.serve.records import RequestError
from jaxdelegate.serve.sessions import Sessions, Step, check_stateless, step_of


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
    return Sessions("fresh", clock=clock, **given), clock


def follow(sessions: Sessions[str], step: Step, after: str, client: str = "") -> str:
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
        ({"sequence_id": True}, "sequence_id: expected"),
        ({"sequence_id": 1.0}, "sequence_id: expected"),
        ({"sequence_start": True}, "sequence_start: the request has no sequence_id"),
        ({"sequence_end": True}, "sequence_end: the request has no sequence_id"),
        ({"sequence_id": 1, "sequence_start": 1}, "sequence_start: expected true or false, got 1"),
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
        sessions.states(Step("a"))


def test_a_number_and_its_text_are_two_sequences() -> None:
    sessions, _ = opened()
    follow(sessions, Step(1, is_start=True), "number")
    follow(sessions, Step("1", is_start=True), "text")
    assert follow(sessions, Step(1), "") == "number"


def test_a_request_that_failed_leaves_the_states() -> None:
    sessions, _ = opened()
    follow(sessions, Step("a", is_start=True), "a1")
    assert sessions.states(Step("a")) == "a1"  # its states are not kept
    assert sessions.states(Step("a")) == "a1"


def test_too_many_sequences() -> None:
    sessions, clock = opened()
    follow(sessions, Step("a", is_start=True), "a1")
    clock.now = 5.0
    follow(sessions, Step("b", is_start=True), "b1")
    with pytest.raises(RequestError, match=r"2 sequences of this client .*per_client") as error:
        sessions.states(Step("c", is_start=True))
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
        sessions.states(Step("a"))


def test_a_sequence_of_one_request_is_not_stored() -> None:
    sessions, _ = opened()
    follow(sessions, Step("a", is_start=True, is_end=True), "a1")
    assert len(sessions) == 0


def test_a_new_sequence_replaces_the_least_recently_used() -> None:
    """Not if that was used just now, or if the new one fails."""
    sessions, clock = opened(session_hold_s=1.0, sessions_per_client=9)
    for clock.now, name in ((0.0, "a"), (2.0, "b"), (3.0, "a")):
        follow(sessions, Step(name, is_start=True), name)
    assert sessions.states(Step("c", is_start=True)) == "fresh"  # fails: its states are not kept
    assert follow(sessions, Step("b"), "b") == "b"
    with pytest.raises(RequestError, match=r"2 sequences are open, .*session_count.* 1 s") as error:
        sessions.states(Step("c", is_start=True))
    assert error.value.status == 503
    clock.now = 4.5
    follow(sessions, Step("c", is_start=True), "c")
    with pytest.raises(RequestError, match=r"'a' is not open.*or 1 s if others need its place"):
        sessions.states(Step("a"))
    assert follow(sessions, Step("b"), "b") == "b"


def test_a_client_with_too_many_does_not_replace_those_of_others() -> None:
    sessions, clock = opened(session_count=100, sessions_per_client=10, session_hold_s=1.0)
    follow(sessions, Step("mine", is_start=True), "mine", "good")
    refused = 0
    for number in range(1, 1000):
        clock.now = number / 100
        try:
            follow(sessions, Step(number, is_start=True), "x", "bad")
        except RequestError:
            refused += 1
    assert refused > 800
    assert len(sessions) == 11
    assert follow(sessions, Step("mine"), "", "good") == "mine"
    follow(sessions, Step("other", is_start=True), "", "good")
    clock.now = 30.0
    sessions.states(Step(None))
    assert len(sessions) == 0


def test_the_end_of_a_sequence_reduces_its_client_s_count() -> None:
    sessions, _ = opened(sessions_per_client=1)
    for name in "abc":
        follow(sessions, Step(name, is_start=True), "", "client")
        follow(sessions, Step(name, is_end=True), "", "client")
    follow(sessions, Step("d", is_start=True, is_end=True), "", "client")
    assert len(sessions) == 0
