"""Advice on where operators run: what splits a graph into partitions, and what that costs."""

import re
from collections.abc import Iterator

from jaxdelegate.analysis.graph import Graph
from jaxdelegate.analysis.records import Finding, SubgraphAnalysis
from jaxdelegate.analysis.units import data, nodes
from jaxdelegate.text import plural

_LINK_BYTES_PER_SECOND = 25e9  # of PCIe 4.0 x16
_SPECIFIC = re.compile(r"'[^']*'|\[[^]]*\]|\d+")  # names, shapes and numbers in a reason


def unplannable(graph: Graph) -> Iterator[Finding]:
    """A subgraph whose declared shapes are incompatible."""
    if graph.survey.problem is not None:
        yield Finding(
            "no_plan",
            graph.index,
            (),
            f"the shapes that the file declares are incompatible: {graph.survey.problem}",
            "resize the inputs before allocate_tensors; costs here are those of declared shapes",
            {},
        )


def partition_splits(graph: Graph) -> Iterator[Finding]:
    """Operators on the CPU between partitions, and the bytes transferred because of them."""
    left = [node.index for node in graph.nodes if node.index not in graph.partition_of]
    if not left or not graph.survey.partitions:
        return
    crossing, groups = _crossing(graph), _by_reason(graph, left)
    if len(groups) > 1 and crossing:
        yield _splits(graph, left, crossing)
    for reason, indices in groups:
        if _used_by(graph, indices, crossing):
            yield _split(graph, reason, indices, crossing)


def _splits(graph: Graph, left: list[int], crossing: set[int]) -> Finding:
    # Not the sum over the groups: a tensor between two of them crosses once.
    amount, known = _amount(graph, crossing)
    return Finding(
        "partition_total",
        graph.index,
        tuple(left),
        f"{len(left)} of {plural(len(graph.nodes), 'operator')} stay on the CPU, with "
        f"{plural(len(graph.survey.partitions), 'partition')} for the others; {amount}",
        "start with the first of the groups below",
        {
            "operators": len(left),
            "partitions": len(graph.survey.partitions),
            "bytes_crossing": known,
        },
    )


def _amount(graph: Graph, tensors: set[int]) -> tuple[str, int]:
    sizes = [graph.bytes_of([tensor]) for tensor in tensors]
    known, unknown = sum(n for n in sizes if n is not None), sizes.count(None)
    rest = f", and {plural(unknown, 'tensor')} whose size depends on data" if unknown else ""
    words = (
        f"{plural(len(tensors) - unknown, 'tensor')} of {data(known)} cross between CPU and device "
        f"at each invoke, about {1e3 * known / _LINK_BYTES_PER_SECOND:.2g} ms over PCIe 4.0 x16"
    )
    return words + rest, known


def _split(graph: Graph, reason: str, indices: list[int], crossing: set[int]) -> Finding:
    partitions = len(graph.survey.partitions)
    with_these = graph.n_partitions({*graph.partition_of, *indices})
    names = ", ".join(sorted({graph.nodes[i].name for i in indices}))
    it, stay = ("it", "stays") if len(indices) == 1 else ("them", "stay")
    effect = (
        f"without {it} there would be {plural(with_these, 'partition')}, not {partitions}"
        if with_these < partitions
        else f"the number of partitions ({partitions}) does not depend on {it} alone"
    )
    tensors = _used_by(graph, indices, crossing)
    amount, known = _amount(graph, tensors)
    return Finding(
        "partition_splits",
        graph.index,
        tuple(indices),
        f"{names} ({nodes(indices)}) {stay} on the CPU: {reason}; {effect}. {amount}",
        f"export the model without {it}, or with {it} before or after all delegated operators",
        {
            "operators": len(indices),
            "partitions": partitions,
            "partitions_without": with_these,
            "tensors_crossing": len(tensors),
            "bytes_crossing": known,
        },
    )


def _crossing(graph: Graph) -> set[int]:
    """Tensors that go from the device to the CPU or back between operators."""
    found = set()
    for tensor, producer in graph.producer.items():
        readers = {i in graph.partition_of for i in graph.consumers.get(tensor, ())}
        if (
            graph.survey.specs[tensor].const is None
            and (producer not in graph.partition_of) in readers
        ):
            found.add(tensor)
    return found


def _used_by(graph: Graph, indices: list[int], tensors: set[int]) -> set[int]:
    operators = [graph.nodes[i].operator for i in indices]
    return tensors & {t for op in operators for t in (*op.inputs, *op.outputs)}


def _by_reason(graph: Graph, left: list[int]) -> list[tuple[str, list[int]]]:
    """Operators grouped by name and kind of reason: the first one's reason, and all indices."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index in left:
        kind = _SPECIFIC.sub("", graph.reasons.get(index) or "")
        groups.setdefault((graph.nodes[index].name, kind), []).append(index)
    ordered = sorted(groups.values(), key=lambda indices: -len(indices))
    return [(graph.reasons.get(indices[0]) or "", indices) for indices in ordered]


def dynamic_shapes(graph: Graph) -> Iterator[Finding]:
    """Operators whose output shapes depend on data, and how many operators depend on them."""
    sources = []
    for node in graph.nodes:
        given = any(spec is not None and spec.is_dynamic for spec in node.inputs)
        if not given and any(spec is not None and spec.is_dynamic for spec in node.outputs):
            sources.append(node.index)
    if not sources:
        return
    dynamic = [
        n.index for n in graph.nodes if any(s is not None and s.is_dynamic for s in n.inputs)
    ]
    names = ", ".join(sorted({graph.nodes[i].name for i in sources}))
    yield Finding(
        "dynamic_shapes",
        graph.index,
        tuple(sources),
        f"the output shape of {names} ({nodes(sources)}) depends on data; "
        f"{plural(len(dynamic), 'operator')} downstream with shapes known only at run time",
        "use a variant with a fixed, padded size (TOPK_V2 or padded suppression instead of WHERE, "
        "a constant shape for RESHAPE)",
        {"sources": len(sources), "operators_behind": len(dynamic)},
    )


def free_dimensions(graph: Graph) -> Iterator[Finding]:
    """Inputs whose shape the caller chooses; each shape is compiled."""
    for index in graph.survey.subgraph.inputs:
        tensor = graph.survey.subgraph.tensors[index]
        signature = tensor.shape_signature
        if signature is None or -1 not in signature:
            continue
        free = [i for i, n in enumerate(signature) if n < 0]
        yield Finding(
            "free_dimensions",
            graph.index,
            graph.consumers.get(index, ()),
            f"input {tensor.name!r} is {list(signature)}: {plural(len(free), 'free dimension')}, "
            f"declared as {list(tensor.shape)}; every input shape is compiled once, "
            "and the latest 16 programs are kept",
            "use few shapes: batches can be padded (JaxDelegate(pad_batch=True) with "
            "jaxdelegate.Interpreter), other dimensions only if the model ignores what is added",
            {"dimensions": len(free)},
        )


def wrong_shapes(graph: Graph) -> Iterator[Finding]:
    """Tensors whose declared shape differs from the propagated one."""
    if graph.survey.problem is not None:
        return
    wrong = []
    for node in graph.nodes:
        for index, spec in zip(node.operator.outputs, node.outputs, strict=True):
            if index < 0 or spec is None or spec.is_dynamic:
                continue
            tensor = graph.survey.subgraph.tensors[index]
            is_free = tensor.shape_signature is not None and -1 in tensor.shape_signature
            if tensor.shape and tensor.shape != spec.shape and not is_free:
                wrong.append((node.index, tensor, spec.shape))
    if wrong:
        index, tensor, shape = wrong[0]
        yield Finding(
            "declared_shapes",
            graph.index,
            tuple(dict.fromkeys(i for i, _, _ in wrong)),
            f"{plural(len(wrong), 'tensor')} whose shape is not the declared one, first "
            f"T#{tensor.index} {tensor.name!r}: declared {list(tensor.shape)}, is {list(shape)}",
            "none needed: shapes follow from the inputs; tools that trust the file are wrong",
            {"tensors": len(wrong)},
        )


def quantized_modes(subgraph: SubgraphAnalysis) -> Iterator[Finding]:
    """How much the other `quant_mode` would delegate."""
    other = subgraph.other_mode
    if other is None or not subgraph.operators:
        return
    here = len(subgraph.operators) - len(subgraph.left)
    this = "integer" if other.quant_mode == "float_view" else "float_view"
    remedy = {
        "integer": "quant_mode='integer' computes as TFLite's integer kernels do",
        "float_view": "quant_mode='float_view' runs them as simulated floats, as TFLite's GPU "
        "delegate does; results differ from the integer kernels'",
    }[other.quant_mode]
    yield Finding(
        "quantized",
        subgraph.index,
        tuple(op.index for op in subgraph.operators if op.delegated == bool(op.other_reason)),
        f"quantized: quant_mode={this!r} delegates {here} of "
        f"{plural(len(subgraph.operators), 'operator')} in "
        f"{plural(len(subgraph.partitions), 'partition')}, {other.quant_mode!r} "
        f"{other.delegated} in {plural(other.partitions, 'partition')}",
        remedy,
        {"delegated": here, "delegated_otherwise": other.delegated},
    )
