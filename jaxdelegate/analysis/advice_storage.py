"""Advice on what a file stores: large tables, duplicates, unused data."""

import hashlib
from collections.abc import Iterator

from jaxdelegate.analysis import sizes
from jaxdelegate.analysis.graph import Graph
from jaxdelegate.analysis.records import Finding
from jaxdelegate.analysis.units import data, percent
from jaxdelegate.model.records import Model, Tensor
from jaxdelegate.text import plural

_TABLE_BYTES = 1 << 20
_DUPLICATE_BYTES = 1 << 10
_TABLE_INPUT = {"GATHER": 0, "EMBEDDING_LOOKUP": 1, "GATHER_ND": 0}


def large_tables(graph: Graph) -> Iterator[Finding]:
    """Large constants of which lookups read few rows."""
    for node in graph.nodes:
        position = _TABLE_INPUT.get(node.name)
        if position is None or position >= len(node.operator.inputs):
            continue
        index = node.operator.inputs[position]
        tensors = graph.survey.subgraph.tensors
        if not 0 <= index < len(tensors):
            continue
        table = tensors[index]
        if table.stored is None or table.stored.nbytes < _TABLE_BYTES:
            continue
        whole, read = int(table.stored.nbytes), graph.costs[node.index].bytes_read
        yield Finding(
            "large_table",
            graph.index,
            (node.index,),
            f"#{node.index} {node.name} reads {data(read)} of table T#{index} {table.name!r} "
            f"{list(table.shape)}, {data(whole)}, "
            f"{percent(100 * whole / max(graph.model.nbytes, 1))} of the file; "
            "all of it is in the device's memory",
            _smaller(table, whole),
            {"table_bytes": whole, "bytes_read": read or 0},
        )


def _smaller(table: Tensor, whole: int) -> str:
    if table.type.name != "FLOAT32":
        return "share the table with the output projection where the model ties them"
    saved = f"{data(whole * 3 / 4)}, int4 {data(whole * 7 / 8)}"
    return f"weight-only int8 quantization would save {saved}"


def unused_tensors(graph: Graph) -> Iterator[Finding]:
    """Tensors that nothing refers to, and their bytes."""
    tensors = graph.survey.subgraph.tensors
    unused = [t for t in tensors if not graph.is_used(t) and 0 not in t.shape]
    if unused:
        held = sum(
            {t.buffer: int(t.stored.nbytes) for t in unused if t.stored is not None}.values()
        )
        names = ", ".join(f"T#{t.index} {t.name!r}" for t in unused[:3])
        yield Finding(
            "unused_tensors",
            graph.index,
            (),
            f"{plural(len(unused), 'tensor')} that no operator uses: {names}"
            f"{', ...' if len(unused) > 3 else ''}; they store {data(held)}",
            "convert the model again, or leave them: they cost nothing at run time",
            {"tensors": len(unused), "bytes": held},
        )


def unused_buffers(model: Model) -> list[Finding]:
    """Buffers of the file that neither a tensor nor metadata refers to."""
    n = sizes.measure(model).unused_buffers
    if not n:
        return []
    message = f"{data(n)} of buffers that no tensor and no metadata refers to"
    return [Finding("unused_buffers", 0, (), message, "convert the model again", {"bytes": n})]


def duplicates(model: Model) -> list[Finding]:
    groups: dict[tuple[int, bytes], dict[int, tuple[int, Tensor]]] = {}
    for subgraph in model.subgraphs:
        for tensor in subgraph.tensors:
            if tensor.stored is not None and tensor.stored.nbytes >= _DUPLICATE_BYTES:
                digest = hashlib.blake2b(tensor.stored.tobytes(), digest_size=16).digest()
                group = groups.setdefault((int(tensor.stored.nbytes), digest), {})
                group.setdefault(tensor.buffer, (subgraph.index, tensor))
    found = []
    for (size, _), group in groups.items():
        if len(group) > 1:
            found.append((size * (len(group) - 1), list(group.values())))
    return [_duplicate(wasted, tensors) for wasted, tensors in sorted(found, key=lambda f: -f[0])]


def _duplicate(wasted: int, tensors: list[tuple[int, Tensor]]) -> Finding:
    names = ", ".join(f"T#{t.index} {t.name!r}" for _, t in tensors[:4])
    return Finding(
        "duplicate_constants",
        tensors[0][0],
        (),
        f"{len(tensors)} constants have the same bytes: {names}"
        f"{', ...' if len(tensors) > 4 else ''}; {data(wasted)} wasted",
        "let them share one buffer",
        {"tensors": len(tensors), "bytes": wasted},
    )
