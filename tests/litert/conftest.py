"""Small models, and delegates, for the stock interpreter."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import jaxdelegate as jd
from jaxdelegate.testing import ModelBuilder

PAGE = Path(__file__).parents[2] / "docs" / "api" / "extend.md"


@pytest.fixture
def tutorial() -> type[jd.SimpleDelegate]:
    """MyDelegate of docs/api/extend.md: float32 ADD and SUB."""
    text = PAGE.read_text()
    (code,) = re.findall(r"```python\n(import numpy as np\n.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "extend.md", "exec"), names)
    return names["MyDelegate"]


@pytest.fixture
def add_mul_sub() -> bytes:
    """((x + y) * y) - x."""
    builder = ModelBuilder()
    x, y = builder.input((4,), np.float32, "x"), builder.input((4,), np.float32, "y")
    a, b, c = (builder.tensor((4,)) for _ in range(3))
    builder.operator("ADD", [x, y], [a])
    builder.operator("MUL", [a, y], [b])
    builder.operator("SUB", [b, x], [c])
    builder.outputs(c)
    return builder.build()


@pytest.fixture
def stock() -> Callable[..., Interpreter]:
    """The stock interpreter with its reference kernels; `auto`: with XNNPACK."""

    def make(
        content: bytes,
        delegates: Sequence[Any] = (),
        auto: bool = False,
        preserve: bool = False,
    ) -> Interpreter:
        return Interpreter(
            model_content=content,
            experimental_delegates=list(delegates),
            experimental_op_resolver_type=(
                OpResolverType.AUTO if auto else OpResolverType.BUILTIN_REF
            ),
            experimental_preserve_all_tensors=preserve,
        )

    return make
