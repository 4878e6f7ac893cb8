"""A model, and rules that tests break."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.op_lowering.registry import RULES

Break = Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(compiled_once: None) -> None:
    pass


@pytest.fixture(scope="session")
def mobilenet() -> bytes:
    return mobilenet_v1(size=32, width=0.25)


@pytest.fixture
def break_rule(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Replace a rule by one that applies `change` to its first result, or only to one tensor."""

    def swap(name: str, change: Callable[[Any], Any], tensor: str | None = None) -> None:
        rule = RULES[name]

        def lower(op: Any) -> Any:
            right = rule.lower(op)
            if tensor not in (None, op.outputs[0].name):
                return right

            def wrong(*arrays: Any) -> tuple[Any, ...]:
                first, *rest = right(*arrays)
                return (change(first), *rest)

            return wrong

        monkeypatch.setitem(RULES, name, dataclasses.replace(rule, lower=lower))

    return swap
