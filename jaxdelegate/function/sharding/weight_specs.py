"""The sharding of each weight on a mesh: replicated, or divided along axes."""

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jax.sharding import Mesh, PartitionSpec

from jaxdelegate.errors import OptionError
from jaxdelegate.function.records import Parameter
from jaxdelegate.function.sharding.meshes import check_axes
from jaxdelegate.model.records import Model, Operator
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.channel_affine import PRODUCTS
from jaxdelegate.xla.over_mesh import divided

REPLICATED = "replicated"

Specs = dict[str, PartitionSpec]
WeightShardings = (
    str | Mapping[str, PartitionSpec | None] | Callable[[str, Shape], PartitionSpec | None]
)

# The dimension of output channels in an operator's weights, its operand 1.
_OUTPUT_CHANNELS = {name: product.units for name, product in PRODUCTS.items()}
_OUTPUT_CHANNELS["CONV_3D_TRANSPOSE"] = 3
_DECODERS = ("DEQUANTIZE", "DENSIFY")  # between stored weights and the operator that reads them


def weight_specs(
    wanted: WeightShardings, mesh: Mesh, graph: Model, parameters: Mapping[str, Parameter]
) -> Specs:
    """The specs of divided weights; all others are replicated.

    `wanted` is "replicated", an axis, patterns of names with specs, or a function of name and
    shape.
    """
    if isinstance(wanted, str):
        specs = {} if wanted == REPLICATED else _by_channels(wanted, mesh, graph, parameters)
    elif isinstance(wanted, Mapping):
        specs = _by_pattern(wanted, parameters)
    elif callable(wanted):
        specs = {name: wanted(name, p.shape) for name, p in parameters.items()}
    else:
        raise OptionError(
            f"sharded: weights: expected {REPLICATED!r}, an axis of the mesh, a dictionary from "
            "name patterns to PartitionSpecs, or a function (name, shape) -> PartitionSpec, got "
            f"{type(wanted).__name__}"
        )
    for name, spec in specs.items():
        if spec is not None:
            check_spec(spec, f"weight {name!r}", parameters[name].shape, mesh)
    return {name: spec for name, spec in specs.items() if spec is not None and any(spec)}


def check_spec(spec: Any, what: str, shape: Shape, mesh: Mesh) -> None:
    """Check that an array of this shape can be divided as `spec` describes."""
    if not isinstance(spec, PartitionSpec):
        raise OptionError(
            f"sharded: weights: {what}: expected a jax.sharding.PartitionSpec or None, got {spec!r}"
        )
    if len(spec) > len(shape):
        raise OptionError(
            f"sharded: weights: {what} is {list(shape)}, and {spec} has {len(spec)} dimensions"
        )
    for size, names in zip(shape, spec, strict=False):
        axes = names if isinstance(names, tuple) else () if names is None else (names,)
        check_axes(f"weights: {what}", axes, mesh)
        parts = 1
        for axis in axes:
            parts *= mesh.shape[axis]
        if size % parts:
            raise OptionError(
                f"sharded: weights: {what} is {list(shape)}: {size} cannot be divided into {parts} "
                f"equal parts, as {spec} requires; use None for this dimension"
            )


def _by_pattern(
    wanted: Mapping[str, PartitionSpec | None], parameters: Mapping[str, Parameter]
) -> dict[str, PartitionSpec | None]:
    """The specs of weights by name, each that of the first matching pattern."""
    for pattern in wanted:
        if not fnmatch.filter(parameters, pattern):
            close = difflib.get_close_matches(pattern, parameters, n=3, cutoff=0.3)
            hint = f"; the closest: {', '.join(map(repr, close))}" if close else ""
            raise OptionError(
                f"sharded: weights: no name in model.parameters matches {pattern!r}{hint}"
            )
    return {
        name: next(spec for pattern, spec in wanted.items() if fnmatch.fnmatchcase(name, pattern))
        for name in parameters
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
    }


def _by_channels(
    axis: str, mesh: Mesh, graph: Model, parameters: Mapping[str, Parameter]
) -> dict[str, PartitionSpec | None]:
    """Specs that divide weights and biases of convolutions and products by output channels."""
    check_axes("weights", (axis,), mesh)
    specs: dict[str, PartitionSpec | None] = {}
    for name, parameter in parameters.items():
        shape = parameter.shape
        dimensions = {
            dimension
            for subgraph, tensor in parameter.tensors
            for dimension in _channel_dimensions(graph, subgraph, tensor, shape)
        }
        if len(dimensions) == 1 and shape[(d := dimensions.pop())] % mesh.shape[axis] == 0:
            specs[name] = divided(*(None for _ in range(d)), axis)
    if not specs:
        raise OptionError(
            f"sharded: weights: no convolution or product has a number of output channels that is "
            f"divisible by {mesh.shape[axis]}, the size of axis {axis!r}; weights={REPLICATED!r} "
            "keeps all weights on every device"
        )
    return specs


def _channel_dimensions(graph: Model, subgraph: int, tensor: int, shape: Shape) -> Iterator[int]:
    for operator in graph.subgraphs[subgraph].operators:
        if tensor not in operator.inputs:
            continue
        if operator.name in _DECODERS:
            yield from _channel_dimensions(graph, subgraph, operator.outputs[0], shape)
        else:
            yield from _of_operator(operator, tensor, shape)


def _of_operator(operator: Operator, tensor: int, shape: Shape) -> Iterator[int]:
    channels = _OUTPUT_CHANNELS.get(operator.name)
    if channels is None:
        return
    if operator.inputs[1] == tensor and channels < len(shape):
        yield channels
    elif len(shape) == 1:
        yield 0  # a bias
