"""States of an open model, taken out of its hosts and put back."""

import numpy as np
import pytest

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.model.source import open_source
from jaxdelegate.passes.limits import Limits
from jaxdelegate.runtime.open_model import OpenModel
from jaxdelegate.runtime.subgraph import SubgraphRunner
from tests.support.recurrent import remembering

STATE = 3  # the variable tensor


def opened(*, is_delegated: bool) -> SubgraphRunner:
    delegates = [JaxDelegate()] if is_delegated else []
    source = open_source(remembering())
    host = OpenModel.of(source, delegates, False, Limits.of(None, None)).runner(0)
    host.allocate()
    return host


def run(host: SubgraphRunner, *values: float) -> np.ndarray:
    host.write(host.subgraph.inputs[0], np.array([values], np.float32))
    host.invoke(True)
    return host.array(host.subgraph.outputs[0]).copy()


@pytest.mark.parametrize("is_delegated", [True, False], ids=["delegated", "reference"])
def test_states_come_back(is_delegated: bool) -> None:
    host = opened(is_delegated=is_delegated)
    initial = host.states()
    first = run(host, 1, 2)
    after_first = host.states()
    second = run(host, 3, 4)
    host.set_states(after_first)
    np.testing.assert_array_equal(run(host, 3, 4), second)
    host.set_states(initial)
    np.testing.assert_array_equal(run(host, 1, 2), first)
    assert not np.array_equal(first, run(host, 1, 2))


def test_who_sets_a_variable_does_not_change_states_that_were_taken() -> None:
    host = opened(is_delegated=False)
    taken = host.states()
    host.write(STATE, np.ones((1, 6), np.float32))
    np.testing.assert_array_equal(taken[STATE], 0)
    np.testing.assert_array_equal(host.array(STATE), 1)
    view = host.view(STATE)
    taken = host.states()
    view[...] = 2
    np.testing.assert_array_equal(taken[STATE], 1)


def test_what_is_not_there_or_does_not_fit_begins_anew() -> None:
    host = opened(is_delegated=False)
    for states in ({}, {STATE: np.ones((2, 6), np.float32)}):
        run(host, 1, 2)
        host.set_states(states)
        np.testing.assert_array_equal(host.array(STATE), 0)
