"""Advice on arithmetic: overflow in float16, and channels that do not fill tensor cores."""

from collections.abc import Iterator

import numpy as np

from jaxdelegate.analysis.graph import Graph
from jaxdelegate.analysis.records import Finding
from jaxdelegate.analysis.units import nodes, operations, percent
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.records.operator import Float16
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.simple_delegate import Node
from jaxdelegate.text import plural

_LARGEST = 65504.0  # of float16
_SMALLEST = 2.0**-24
_LONG_SUM = 1024  # elements: unit values reach 2% of float16's range
_MIN_PADDING = 0.01  # of a subgraph's operations, to be reported


def float16_constants(graph: Graph) -> Iterator[Finding]:
    """float32 constants that become infinite or zero in float16."""
    for tensor in graph.survey.subgraph.tensors:
        values = tensor.constant if tensor.stored is not None and tensor.sparsity is None else None
        if values is None or values.dtype != np.float32 or not values.size:
            continue
        size = np.abs(values[np.isfinite(values)])
        large = int(np.count_nonzero(size > _LARGEST))
        lost = int(np.count_nonzero((size > 0) & (size <= _SMALLEST / 2)))
        are_all_lost = lost > 0 and lost == values.size
        if not large and not are_all_lost:
            continue
        yield _constant_finding(graph, tensor.index, tensor.name, values, large)


def _constant_finding(
    graph: Graph, index: int, name: str, values: np.ndarray, large: int
) -> Finding:
    readers = graph.consumers.get(index, ())
    extreme = float(np.nanmax(np.abs(values[np.isfinite(values)])))
    if large:
        what = f"{plural(large, 'value')} beyond 65504 (largest {extreme:.4g}): infinite in float16"
        remedy = "masks: use -65504 or less; scales: divide before the multiplication"
    else:
        what = f"at most {extreme:.4g}, which is zero in float16: an epsilon has no effect"
        remedy = "use an epsilon of at least 1e-6, or float32 for these operators"
    return Finding(
        "float16_constant",
        graph.index,
        readers,
        f"constant T#{index} {name!r} (read by {nodes(readers) or 'no operator'}) has {what}",
        remedy,
        {"values": float(large or values.size), "largest": extreme},
    )


def float16_sums(graph: Graph) -> Iterator[Finding]:
    """Long sums, and the mean element at which they overflow float16."""
    found: list[tuple[int, int]] = []
    for node in graph.nodes:
        if (
            record_of(node.name).precision.float16 is Float16.SUM
            and not node.is_constant
            and _is_float(node.inputs[0])
        ):
            extent = _extent(node)
            if extent is not None and extent >= _LONG_SUM:
                found.append((extent, node.index))
    if found:
        extent, index = max(found)
        indices = tuple(sorted(i for _, i in found))
        yield Finding(
            "float16_sum",
            graph.index,
            indices,
            f"{plural(len(found), 'reduction')} ({nodes(indices)}) over {_LONG_SUM:,} elements "
            f"or more; #{index} {graph.nodes[index].name} adds {extent:,}: a float16 sum "
            f"overflows once they are {_LARGEST / extent:.3g} on average",
            "accumulate in float32; a MEAN's result is then safe, a SUM's must still fit",
            {"operators": len(found), "longest": extent, "mean_limit": _LARGEST / extent},
        )


def _extent(node: Node) -> int | None:
    """The number of elements that a reduction adds for each output."""
    source, result = node.inputs[0], node.outputs[0]
    if source.is_dynamic or result.is_dynamic or not np.prod(result.shape, dtype=np.int64):
        return None
    if node.name == "CUMSUM":
        axis = node.inputs[1].const
        return None if axis is None or not source.shape else int(source.shape[int(axis.flat[0])])
    whole = int(np.prod(source.shape, dtype=np.int64))
    return whole // int(np.prod(result.shape, dtype=np.int64))


def _is_float(spec: TensorSpec) -> bool:
    return spec.dtype in (np.float32, np.float16)


def float16_growth(graph: Graph) -> Iterator[Finding]:
    """Operators whose results exceed float16's range for ordinary arguments."""
    indices = tuple(
        node.index
        for node in graph.nodes
        if record_of(node.name).precision.float16 is Float16.GROWTH
        and not node.is_constant
        and _is_float(node.outputs[0])
    )
    if indices:
        names = ", ".join(sorted({graph.nodes[i].name for i in indices}))
        yield Finding(
            "float16_growth",
            graph.index,
            indices,
            f"{names} ({nodes(indices)}): in float16, EXP overflows beyond 11.09, SQUARE beyond "
            "255.9, and POW where its result exceeds 65504",
            "compute them in float32, or bound their arguments first",
            {"operators": len(indices)},
        )


# ---- tensor cores


def tensor_core_channels(graph: Graph) -> Iterator[Finding]:
    """Products whose channels are padded to the tile size of tensor cores."""
    waste: dict[int, float] = {}
    channels: dict[int, tuple[int, int]] = {}
    for node in graph.nodes:
        flops, product = graph.costs[node.index].flops, record_of(node.name).product
        if product is None or product.channels is None or not flops:
            continue
        try:
            channels[node.index] = product.channels(
                node.operator.options, node.inputs, node.outputs
            )
        except (IndexError, ValueError):
            continue
        step = 16 if node.inputs[0].dtype.itemsize == 1 else 8
        padded = [-(-n // step) * step for n in channels[node.index]]
        n_in, n_out = channels[node.index]
        extra = padded[0] * padded[1] / max(n_in * n_out, 1) - 1
        if extra:
            waste[node.index] = flops * extra
    total, all_flops = sum(waste.values()), sum(cost.flops or 0 for cost in graph.costs)
    if total < _MIN_PADDING * all_flops or not waste:
        return
    order = sorted(waste, key=lambda i: -waste[i])
    worst = graph.nodes[order[0]]
    n_in, n_out = channels[worst.index]
    share = waste[order[0]] / (graph.costs[order[0]].flops or 1)
    yield Finding(
        "tensor_core_channels",
        graph.index,
        tuple(order),
        f"{plural(len(waste), 'product')} ({nodes(order)}) whose channels are not a multiple of 8 "
        f"(16 for 8-bit operands): tensor cores compute {operations(total)} of padding, "
        f"{percent(100 * total / all_flops)} on top of the subgraph's {operations(all_flops)}; "
        f"worst #{worst.index} {worst.name}, {n_in} in and {n_out} out: +{percent(100 * share)}",
        "choose channel counts that are multiples of 8; a first layer of 3 channels is usual",
        {"operators": len(waste), "padding_flops": total, "flops": all_flops},
    )
