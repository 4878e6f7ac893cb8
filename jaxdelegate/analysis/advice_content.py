"""Advice on what a model computes and stores: numbers, data movement, and unused bytes."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from jaxdelegate.analysis.planning import Graph
from jaxdelegate.analysis.records import Finding
from jaxdelegate.analysis.units import data, nodes, operations, percent
from jaxdelegate.model.records import Model, Tensor
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.records.operator import Float16
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.simple_delegate import Node
from jaxdelegate.text import plural

# ---- arithmetic: overflow in float16, channels that do not fill tensor cores

_LARGEST, _SMALLEST = 65504.0, 2.0**-24  # positive float16 values
_LONG_SUM = 1024  # elements: unit values reach 2% of float16's range
_MIN_PADDING = 0.01  # a smaller share of a subgraph's operations is not reported


def float16_constants(graph: Graph) -> Iterator[Finding]:
    """float32 constants that become infinite or zero in float16."""
    for tensor in graph.tensors:
        values = tensor.constant if tensor.stored is not None and tensor.sparsity is None else None
        if values is None or values.dtype != np.float32 or not values.size:
            continue
        sizes = np.abs(values[np.isfinite(values)])
        large = int(np.count_nonzero(sizes > _LARGEST))
        lost = int(np.count_nonzero((sizes > 0) & (sizes <= _SMALLEST / 2)))
        if large or lost == values.size:
            largest = float(sizes.max(initial=0))
            yield _float16_constant(graph, tensor, large or values.size, largest)


def _float16_constant(graph: Graph, tensor: Tensor, count: int, largest: float) -> Finding:
    """`count` values become infinite or, if the largest is finite in float16, zero."""
    if largest > _LARGEST:
        what = f"{plural(count, 'value')} beyond 65504 (largest {largest:.4g}): infinite in float16"
        remedy = "masks: use -65504 or less; scales: divide before the multiplication"
    else:
        what = f"at most {largest:.4g}, which is zero in float16: an epsilon has no effect"
        remedy = "use an epsilon of at least 1e-6, or float32 for these operators"
    readers = graph.consumers.get(tensor.index, ())
    return graph.finding(
        "float16_constant",
        readers,
        f"constant T#{tensor.index} {tensor.name!r} (read by {nodes(readers) or 'no operator'}) "
        f"has {what}",
        remedy,
        values=float(count),
        largest=largest,
    )


def float16_sums(graph: Graph) -> Iterator[Finding]:
    """Long sums, and the mean element at which they overflow float16."""
    sums = _float_nodes(graph, Float16.SUM)
    extents = {node.index: _extent(node) for node in sums if _is_float(node.inputs[0])}
    long = {index: n for index, n in extents.items() if n is not None and n >= _LONG_SUM}
    if long:
        extent, index = max((n, i) for i, n in long.items())
        yield graph.finding(
            "float16_sum",
            long,
            f"{plural(len(long), 'reduction')} ({nodes([*long])}) over {_LONG_SUM:,} elements "
            f"or more; #{index} {graph.nodes[index].name} adds {extent:,}: a float16 sum "
            f"overflows once they are {_LARGEST / extent:.3g} on average",
            "accumulate in float32; a MEAN's result is then safe, a SUM's must still fit",
            operators=len(long),
            longest=extent,
            mean_limit=_LARGEST / extent,
        )


def _float_nodes(graph: Graph, risk: Float16) -> list[Node]:
    return [
        n for n in graph.nodes if record_of(n.name).precision.float16 is risk and not n.is_constant
    ]


def _extent(node: Node) -> int | None:
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
    growing = _float_nodes(graph, Float16.GROWTH)
    indices = [node.index for node in growing if _is_float(node.outputs[0])]
    if indices:
        yield graph.finding(
            "float16_growth",
            indices,
            f"{graph.names(indices)} ({nodes(indices)}): in float16, EXP overflows beyond 11.09, "
            "SQUARE beyond 255.9, and POW where its result exceeds 65504",
            "compute them in float32, or bound their arguments first",
            operators=len(indices),
        )


def tensor_core_channels(graph: Graph) -> Iterator[Finding]:
    """Products whose channels are padded to the tile size of tensor cores."""
    shares = {node.index: _padding(graph, node) for node in graph.nodes}
    waste = {i: share * (graph.costs[i].flops or 0) for i, share in shares.items() if share}
    total, all_flops = sum(waste.values()), sum(cost.flops or 0 for cost in graph.costs)
    if total < _MIN_PADDING * all_flops or not waste:
        return
    order = sorted(waste, key=lambda i: -waste[i])
    worst = graph.nodes[order[0]]
    n_in, n_out = _channels(worst) or (0, 0)
    yield graph.finding(
        "tensor_core_channels",
        order,
        f"{plural(len(waste), 'product')} ({nodes(order)}) whose channels are not a multiple of 8 "
        f"(16 for 8-bit operands): tensor cores compute {operations(total)} of padding, "
        f"{percent(100 * total / all_flops)} on top of the subgraph's {operations(all_flops)}; "
        f"worst #{worst.index} {worst.name}, {n_in} in and {n_out} out: "
        f"+{percent(100 * shares[worst.index])}",
        "choose channel counts that are multiples of 8; a first layer of 3 channels is usual",
        operators=len(waste),
        padding_flops=total,
        flops=all_flops,
    )


def _padding(graph: Graph, node: Node) -> float:
    """What tensor cores compute in addition, as a share of a product's operations."""
    channels = _channels(node) if graph.costs[node.index].flops else None
    if channels is None:
        return 0.0
    step = 16 if node.inputs[0].dtype.itemsize == 1 else 8
    n_in, n_out = (-(-n // step) * step for n in channels)
    return n_in * n_out / max(channels[0] * channels[1], 1) - 1


def _channels(node: Node) -> tuple[int, int] | None:
    product = record_of(node.name).product
    if product is None or product.channels is None:
        return None
    try:
        return product.channels(node.operator.options, node.inputs, node.outputs)
    except (IndexError, ValueError):
        return None


# ---- operators that only move data

_FREE = frozenset(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "STABLEHLO_RESHAPE"))
_COPYING = frozenset(
    (
        "BATCH_TO_SPACE_ND",
        "DEPTH_TO_SPACE",
        "REVERSE_V2",
        "SPACE_TO_BATCH_ND",
        "SPACE_TO_DEPTH",
        "STABLEHLO_TRANSPOSE",
        "TRANSPOSE",
    )
)
_CONVOLUTIONS = frozenset(("CONV_2D", "DEPTHWISE_CONV_2D"))


def space_to_batch(graph: Graph) -> Iterator[Finding]:
    """Dilated convolutions written as SPACE_TO_BATCH_ND, convolution, BATCH_TO_SPACE_ND."""
    for node in graph.nodes:
        if node.name != "SPACE_TO_BATCH_ND" or node.is_constant:
            continue
        convolution = graph.only_consumer(node)
        if convolution is None or convolution.name not in _CONVOLUTIONS:
            continue
        back = graph.only_consumer(convolution)
        if back is None or back.name != "BATCH_TO_SPACE_ND":
            continue
        block = None if node.inputs[1].const is None else node.inputs[1].const.tolist()
        moved = sum(graph.costs[n.index].bytes or 0 for n in (node, back))
        indices = (node.index, convolution.index, back.index)
        yield graph.finding(
            "space_to_batch",
            indices,
            f"SPACE_TO_BATCH_ND, {convolution.name}, BATCH_TO_SPACE_ND ({nodes(indices)}) are a "
            f"convolution dilated by {block}; the rearrangement moves {data(moved)}",
            "inside a partition, the rewrite dilate_convolution replaces them; elsewhere, export "
            "the convolution with dilation_h_factor and dilation_w_factor",
            bytes_moved=moved,
        )


def movement_chains(graph: Graph) -> Iterator[Finding]:
    """Two or more data movements in a row; transposes among them may cancel out."""
    seen: set[int] = set()
    for node in graph.nodes:
        if node.index in seen or not _moves(node):
            continue
        chain = [node]
        while (following := graph.only_consumer(chain[-1])) is not None and _moves(following):
            if graph.producer.get(following.operator.inputs[0]) != chain[-1].index:
                break
            chain.append(following)
        seen.update(n.index for n in chain)
        if len(chain) > 1:
            yield _movement_chain(graph, chain)


def _moves(node: Node) -> bool:
    return node.name in _FREE | _COPYING and not node.is_constant


def _movement_chain(graph: Graph, chain: list[Node]) -> Finding:
    indices = [node.index for node in chain]
    sizes = [graph.costs[n.index].bytes for n in chain if n.name in _COPYING]
    moved = sum(n for n in sizes if n is not None)
    amount = "how much depends on data" if None in sizes else f"{data(moved)} if each runs alone"
    names = ", ".join(node.name for node in chain)
    what = f"{names} ({nodes(indices)}) only move data: {amount}"
    remedy = "fold them into one TRANSPOSE and one RESHAPE where the model is exported"
    if _is_identity(chain):
        what += "; together they change nothing"
        remedy = "remove them where the model is exported"
    elif not sizes:
        what += "; reshapes cost nothing inside a partition"
        remedy = "one RESHAPE is enough; on the CPU each of them is a copy"
    return graph.finding(
        "movement_chain", indices, what, remedy, operators=len(chain), bytes_moved=moved
    )


def _is_identity(chain: list[Node]) -> bool:
    """Whether the result equals the input: it has the same shape, and no element moves."""
    first, last = chain[0].inputs[0], chain[-1].outputs[0]
    if first.is_dynamic or last.is_dynamic or first.shape != last.shape:
        return False
    if all(node.name in _FREE for node in chain):
        return True
    if any(node.name != "TRANSPOSE" for node in chain):
        return False
    order = list(range(len(first.shape)))
    for node in chain:
        permutation = node.inputs[1].const
        if permutation is None:
            return False
        order = [order[int(axis)] for axis in permutation.reshape(-1)]
    return order == sorted(order)


# ---- what a file stores

_TABLE_BYTES = 1 << 20
_DUPLICATE_BYTES = 1 << 10
_TABLE_INPUT = {"GATHER": 0, "EMBEDDING_LOOKUP": 1, "GATHER_ND": 0}


def large_tables(graph: Graph) -> Iterator[Finding]:
    """Large constants of which lookups read few rows."""
    for node in graph.nodes:
        position, inputs = _TABLE_INPUT.get(node.name), node.operator.inputs
        if position is None or position >= len(inputs) or inputs[position] < 0:
            continue
        table = graph.tensors[inputs[position]]
        if table.stored is None or table.stored.nbytes < _TABLE_BYTES:
            continue
        whole, read = int(table.stored.nbytes), graph.costs[node.index].bytes_read
        yield graph.finding(
            "large_table",
            (node.index,),
            f"#{node.index} {node.name} reads {data(read)} of table T#{table.index} "
            f"{table.name!r} {list(table.shape)}, {data(whole)}, "
            f"{percent(100 * whole / max(graph.model.nbytes, 1))} of the file; "
            "all of it is in the device's memory",
            _smaller(table, whole),
            table_bytes=whole,
            bytes_read=read or 0,
        )


def _smaller(table: Tensor, whole: int) -> str:
    if table.type.name != "FLOAT32":
        return "share the table with the output projection where the model ties them"
    saved = f"{data(whole * 3 / 4)}, int4 {data(whole * 7 / 8)}"
    return f"weight-only int8 quantization would save {saved}"


def unused_tensors(graph: Graph) -> Iterator[Finding]:
    """Tensors that nothing refers to, and their bytes."""
    unused = [t for t in graph.tensors if t.index not in graph.used and 0 not in t.shape]
    if unused:
        held = sum(
            {t.buffer: int(t.stored.nbytes) for t in unused if t.stored is not None}.values()
        )
        yield graph.finding(
            "unused_tensors",
            (),
            f"{plural(len(unused), 'tensor')} that no operator uses: {_first(unused, 3)}; they "
            f"store {data(held)}",
            "convert the model again, or leave them: they cost nothing at run time",
            tensors=len(unused),
            bytes=held,
        )


def _first(tensors: Sequence[Tensor], most: int) -> str:
    names = ", ".join(f"T#{t.index} {t.name!r}" for t in tensors[:most])
    return names + ", ..." * (len(tensors) > most)


def duplicates(model: Model) -> list[Finding]:
    groups: dict[tuple[int, bytes], dict[int, tuple[int, Tensor]]] = {}
    for subgraph in model.subgraphs:
        for tensor in subgraph.tensors:
            if tensor.stored is not None and tensor.stored.nbytes >= _DUPLICATE_BYTES:
                digest = hashlib.blake2b(tensor.stored.tobytes(), digest_size=16).digest()
                group = groups.setdefault((int(tensor.stored.nbytes), digest), {})
                group.setdefault(tensor.buffer, (subgraph.index, tensor))
    copies = [(size * (len(g) - 1), [*g.values()]) for (size, _), g in groups.items() if len(g) > 1]
    return [_duplicate(wasted, group) for wasted, group in sorted(copies, key=lambda c: -c[0])]


def _duplicate(wasted: int, group: list[tuple[int, Tensor]]) -> Finding:
    names = _first([tensor for _, tensor in group], 4)
    return Finding(
        "duplicate_constants",
        group[0][0],
        (),
        f"{len(group)} constants have the same bytes: {names}; {data(wasted)} wasted",
        "let them share one buffer",
        {"tensors": len(group), "bytes": wasted},
    )
