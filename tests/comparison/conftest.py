"""Models, and rules that are broken on purpose."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    Padding,
    Pool2DOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.networks import mobilenet_v1

Break = Callable[..., None]


@pytest.fixture(scope="session")
def mobilenet() -> bytes:
    return mobilenet_v1(size=32, width=0.25)


@pytest.fixture(scope="session")
def network() -> bytes:
    """The kinds of layers of MobileNet v1, one or two of each; quick to compile."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()

    def weights(*shape: int) -> int:
        return builder.constant(rng.normal(0, 0.5, shape).astype(np.float32))

    x = builder.input((1, 8, 8, 3), np.float32, "input")
    a, b, c = (
        builder.tensor((1, 8, 8, 4), name=name) for name in ("conv_1", "depthwise_2", "conv_3")
    )
    d, e = (builder.tensor((1, 1, 1, 4), name=name) for name in ("pool", "probabilities"))
    one = Conv2DOptions(Padding.SAME, 1, 1)
    builder.operator("CONV_2D", [x, weights(4, 3, 3, 3), weights(4)], [a], one)
    builder.operator(
        "DEPTHWISE_CONV_2D",
        [a, weights(1, 3, 3, 4), weights(4)],
        [b],
        DepthwiseConv2DOptions(Padding.SAME, 1, 1, 1),
    )
    builder.operator("CONV_2D", [b, weights(4, 1, 1, 4), weights(4)], [c], one)
    builder.operator("AVERAGE_POOL_2D", [c], [d], Pool2DOptions(Padding.VALID, 1, 1, 8, 8))
    builder.operator("SOFTMAX", [d], [e], SoftmaxOptions(beta=1.0))
    builder.outputs(e)
    return builder.build()


@pytest.fixture
def break_rule(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Swap a rule for one whose first result goes through `change`, or only that of one tensor."""

    def swap(name: str, change: Callable[[Any], Any], tensor: str | None = None) -> None:
        rule = RULES[name]

        def lower(context: Any, options: Any, inputs: Any, outputs: Any) -> Any:
            right = rule.lower(context, options, inputs, outputs)
            if tensor not in (None, outputs[0].name):
                return right

            def wrong(*arrays: Any) -> tuple[Any, ...]:
                first, *rest = right(*arrays)
                return (change(first), *rest)

            return wrong

        monkeypatch.setitem(RULES, name, dataclasses.replace(rule, lower=lower))

    return swap
