"""`jaxdelegate.from_jax` and `jaxdelegate.save_jax`."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxdelegate.conversion import activations, layouts, patterns
from jaxdelegate.conversion.graph import Graph
from jaxdelegate.conversion.rewriter import Rule, drop_dead, merge_equal, rewrite
from jaxdelegate.conversion.tracing import signatures_of, traced
from jaxdelegate.conversion.weights import Weights, checked, with_float16, with_int8
from jaxdelegate.conversion.writing import written
from jaxdelegate.model.writing import write_file

_ARITHMETIC: dict[str, tuple[Rule, ...]] = {
    op: (*layouts.RULES.get(op, ()), *patterns.RULES.get(op, ()))
    for op in sorted({*layouts.RULES, *patterns.RULES})
}
# Patterns before transposes move into them, and activations before a factor of one is moved.
_PASSES = (
    activations.RULES, patterns.RULES, _ARITHMETIC, activations.RULES, patterns.FUSING,
    patterns.LAST,
)  # fmt: skip


def from_jax(
    function: Callable[..., Any] | None = None,
    *examples: Any,
    params: Any = None,
    names: Sequence[str] | None = None,
    signatures: Mapping[str, Sequence[Any]] | None = None,
    weights: Weights = "float32",
) -> bytes:
    """A JAX function as a .tflite file, without TensorFlow.

    Arrays that the function closes over become constants, named by their place in what holds them.
    Inputs are named by the function's arguments, and by the place in the argument if that is a
    pytree; outputs by the place in the result. float16 and bfloat16 become float32.

    Args:
        function: what `jax.jit` could compile.
        *examples: its arguments: arrays, or `jax.ShapeDtypeStruct`, in any pytrees. A symbolic
            dimension (`jax.export.symbolic_shape`) is free in the file, -1 in `shape_signature`.
        params: the function's first argument, before the examples, if it is to be constants.
        names: names for the examples instead of those of the arguments.
        signatures: several functions instead of one: `{key: (function, *examples)}`. They get the
            same params, and share equal constants. The first is the main one. One function has the
            key `serving_default`.
        weights: "float16": float32 constants are stored as float16, with a DEQUANTIZE operator for
            each. "int8": the weights of convolutions and FULLY_CONNECTED of at least 1024 elements
            are int8 with a scale for each channel, and kernels quantize activations as they run
            (dynamic range). "float32": all are stored as they are.

    A call of a model that `jaxdelegate.load` read is written as the operators of its file,
    unchanged; quantized ones stay quantized.

    Raises:
        ConversionError: TFLite has no operator for a primitive, or it does not compute with its
            types. The message names the primitive, the line of the function, and what to write
            instead.
        OptionError: neither a function nor signatures, names that do not fit the examples, or other
            `weights`.
    """
    checked(weights)
    graphs = {}
    for key, (f, arguments) in signatures_of(function, examples, signatures).items():
        graphs[key] = traced(key, f, arguments, params, names)
        _clean(graphs[key].graph)
        if weights == "int8":
            with_int8(graphs[key].graph)
    content = written(graphs)
    return with_float16(content) if weights == "float16" else content


def save_jax(
    path: str | os.PathLike[str],
    function: Callable[..., Any] | None = None,
    *examples: Any,
    **how: Any,
) -> None:
    """Write a JAX function as a .tflite file: see `from_jax`, whose arguments follow the path.

    Raises:
        ConversionError: as for `from_jax`; nothing is written then.
        OSError: the file cannot be written.
    """
    content = from_jax(function, *examples, **how)
    write_file(os.fspath(path), lambda file: file.write(content))


def _clean(graph: Graph) -> None:
    """Simplify a graph and those that it calls, in place, to what a person would have written."""
    for called in graph.called():
        _clean(called)
    drop_dead(graph)
    merge_equal(graph)
    for rules in _PASSES:
        rewrite(graph, rules)
    merge_equal(graph)
    drop_dead(graph)
