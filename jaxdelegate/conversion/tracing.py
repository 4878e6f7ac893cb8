"""A function and its examples become a graph, whose inputs and outputs have names."""

import dataclasses
import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdelegate.conversion.emitter import Emitter
from jaxdelegate.conversion.graph import Complex, Graph, Key, Value, constant, stored_dtype, unused
from jaxdelegate.conversion.interpreting import run
from jaxdelegate.conversion.primitives import PRIMITIVES
from jaxdelegate.errors import ConversionError, OptionError
from jaxdelegate.function.written_calls import written_calls
from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES

_LOGGER = logging.getLogger("jaxdelegate")


@dataclasses.dataclass(frozen=True)
class Traced:
    """A graph with the names of its inputs and outputs."""

    graph: Graph
    inputs: dict[str, Value]
    outputs: dict[str, Value]


def traced(
    key: str, function: Callable[..., Any], examples: Sequence[Any], params: Any, names: Any
) -> Traced:
    """The graph of a function; `params` is its first argument, or None."""
    given = () if params is None else (params,)
    leaves, tree = jax.tree.flatten((*given, *examples))
    shapes = jax.tree.unflatten(tree, [_example(key, leaf) for leaf in leaves])

    def fresh(*arguments: Any) -> Any:  # JAX caches traces by function, and this one is special
        return function(*arguments)

    with written_calls():
        jaxpr, result = jax.make_jaxpr(fresh, return_shape=True)(*shapes)
    graph = Graph(key)
    values: list[Value] = []
    inputs: dict[str, Value] = {}
    count = len(jax.tree.leaves(given))
    for name, leaf, aval in zip(
        _names(function, given, examples, names), leaves, jaxpr.in_avals, strict=True
    ):
        value = constant(leaf, name) if len(values) < count else _input(key, name, aval)
        values.append(value)
        if not value.is_constant:
            inputs[name] = value
    graph.inputs = list(inputs.values())
    known = {id(leaf): name for name, leaf in _closed_over(function)}
    consts = [constant(c, known.get(id(c), "constant")) for c in jaxpr.consts]
    results = run(Emitter(graph, PRIMITIVES), jaxpr, values, consts)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(result)[0]]
    return Traced(graph, inputs, _outputs(key, graph, paths, results))


def _example(key: str, leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        return jax.eval_shape(jax.numpy.asarray, leaf)
    except TypeError as error:
        kind = f"{type(leaf).__name__} {getattr(leaf, 'dtype', '')}".rstrip()
        raise ConversionError(
            f"from_jax: {key}: an example must be an array, a number or a ShapeDtypeStruct, got "
            f"{kind}; bind other arguments with functools.partial"
        ) from error


def _input(key: str, name: str, aval: Any) -> Value:
    if not isinstance(aval.dtype, np.dtype):
        raise ConversionError(
            f"from_jax: {key}: the input {name!r} is a random key, which is not a tensor; pass "
            "jax.random.key_data(key), and call jax.random.wrap_key_data in the function"
        )
    dtype = stored_dtype(aval.dtype)
    if dtype != aval.dtype:
        _LOGGER.warning("from_jax: %s: the input %r is float32 in the file", key, name)
    if dtype not in TENSOR_TYPES or dtype.kind not in "fiub" or dtype == np.float64:
        raise ConversionError(
            f"from_jax: {key}: the input {name!r} is {aval.dtype.name}, which kernels do not "
            "compute with; use float32, an integer or a boolean"
        )
    return Value(tuple(aval.shape), dtype, name)


def _outputs(key: str, graph: Graph, paths: list[Any], results: list[Any]) -> dict[str, Value]:
    used: Counter[str] = Counter()
    outputs = {}
    for path, value in zip(paths, results, strict=True):
        name = unused(used, _path(path) or "output")
        if isinstance(value, Key):
            raise ConversionError(
                f"from_jax: {key}: the output {name!r} is a random key, which is not a tensor; "
                "return jax.random.key_data(key)"
            )
        if isinstance(value, Complex):
            raise ConversionError(
                f"from_jax: {key}: the output {name!r} is complex, and no kernel reads such "
                "tensors; return its real and imaginary parts"
            )
        outputs[name] = value
    graph.outputs = list(outputs.values())
    return outputs


# ---- names


def _path(path: Any) -> str:
    text = _place(path)
    return f"output_{text}" if text.isdigit() else text


def _joined(*parts: str) -> str:
    return "/".join(filter(None, parts))


def _place(path: Any) -> str:
    return str(jax.tree_util.keystr(path, simple=True, separator="/"))


def _names(
    function: Callable[..., Any], given: tuple[Any, ...], examples: Sequence[Any], names: Any
) -> list[str]:
    """The name of each leaf of the arguments: the argument's, and its place in the tree."""
    arguments = _arguments(function, len(given) + len(examples))
    if names is not None:
        if len(names) != len(examples):
            raise OptionError(
                f"from_jax: names: expected one for each of the {len(examples)} examples, got "
                f"{list(names)}"
            )
        arguments[len(given) :] = list(names)
    if given:
        arguments[0] = ""
    used: Counter[str] = Counter()
    return [
        unused(used, _joined(argument, _place(path)) or "params")
        for argument, value in zip(arguments, (*given, *examples), strict=True)
        for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]
    ]


def _arguments(function: Callable[..., Any], count: int) -> list[str]:
    default = [f"input_{i}" for i in range(count)]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return default
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p.name for p in parameters if p.kind in positional][:count]
    return [*named, *default[len(named) :]]


def _closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """The arrays that a function closes over, with their places."""
    for name, tree in _held(function):
        try:
            leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        except (TypeError, ValueError):
            continue
        for path, leaf in leaves:
            yield _joined(name, _place(path).removesuffix("/value")), leaf


def _held(function: Any) -> Iterator[tuple[str, Any]]:
    function = inspect.unwrap(function) if callable(function) else function
    if isinstance(function, functools.partial):
        yield from ((f"arg_{i}", a) for i, a in enumerate(function.args))
        yield from function.keywords.items()
        yield from _held(function.func)
    elif inspect.ismethod(function):
        yield "", function.__self__
        yield from _held(function.__func__)
    elif inspect.isfunction(function):
        try:
            held = inspect.getclosurevars(function)
        except ValueError:  # a variable has no value yet
            return
        yield from {**held.globals, **held.nonlocals}.items()
    else:
        yield "", function


def signatures_of(
    function: Callable[..., Any] | None,
    examples: Sequence[Any],
    signatures: Mapping[str, Sequence[Any]] | None,
) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The functions by signature, with their examples."""
    if (function is None) == (signatures is None):
        raise OptionError(
            "from_jax: expected a function with examples, or signatures={key: (function, "
            "*examples)}, and not both"
        )
    if signatures is None:
        return {"serving_default": (function, tuple(examples))}  # type: ignore[dict-item]
    if not signatures or examples:
        raise OptionError("from_jax: signatures: expected {key: (function, *examples)}")
    return {key: (entry[0], tuple(entry[1:])) for key, entry in signatures.items()}
