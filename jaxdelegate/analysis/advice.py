"""Advice on a model: rules, most of which look at one planned subgraph.

The rules here are about where operators run and about shapes.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from jaxdelegate.analysis import advice_content
from jaxdelegate.analysis.planning import Graph
from jaxdelegate.analysis.records import Finding, Sizes, SubgraphAnalysis
from jaxdelegate.analysis.units import data, nodes
from jaxdelegate.model.records import Model
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.text import plural


def findings(
    model: Model, graphs: Sequence[Graph], subgraphs: Sequence[SubgraphAnalysis], sizes: Sizes
) -> tuple[Finding, ...]:
    advice = [finding for rule in _GRAPH_RULES for graph in graphs for finding in rule(graph)]
    advice += [finding for subgraph in subgraphs for finding in _quantized_modes(subgraph)]
    advice += advice_content.duplicates(model)
    if n := sizes.unused_buffers:
        message = f"{data(n)} of buffers that no tensor and no metadata refers to"
        remedy = "convert the model again"
        advice.append(Finding("unused_buffers", 0, (), message, remedy, {"bytes": n}))
    return tuple(advice)


# ---- where operators run: what splits a graph into partitions, and what that costs

_LINK_BYTES_PER_SECOND = 25e9  # PCIe 4.0 x16
_SPECIFIC = re.compile(r"'[^']*'|\[[^]]*\]|\d+")  # names, shapes and numbers in a reason


def _unplannable(graph: Graph) -> Iterator[Finding]:
    if graph.problem is not None:
        yield graph.finding(
            "no_plan",
            (),
            f"the shapes that the file declares are incompatible: {graph.problem}",
            "resize the inputs before allocate_tensors; costs here are those of declared shapes",
        )


def _partition_splits(graph: Graph) -> Iterator[Finding]:
    """Operators on the CPU between partitions, and the bytes transferred because of them."""
    left = [node.index for node in graph.nodes if node.index not in graph.partition_of]
    if not left or not graph.partitions:
        return
    crossing, groups = _crossing(graph), _by_reason(graph, left)
    if len(groups) > 1 and crossing:
        # Not the sum over the groups: a tensor between two of them crosses once.
        amount, known = _amount(graph, crossing)
        partitions = len(graph.partitions)
        yield graph.finding(
            "partition_total",
            left,
            f"{len(left)} of {plural(len(graph.nodes), 'operator')} stay on the CPU, with "
            f"{plural(partitions, 'partition')} for the others; {amount}",
            "start with the first of the groups below",
            operators=len(left),
            partitions=partitions,
            bytes_crossing=known,
        )
    for reason, indices in groups:
        operators = [graph.nodes[i].operator for i in indices]
        tensors = crossing & {t for op in operators for t in (*op.inputs, *op.outputs)}
        if tensors:
            yield _split(graph, reason, indices, tensors)


def _split(graph: Graph, reason: str, indices: list[int], tensors: set[int]) -> Finding:
    partitions = len(graph.partitions)
    with_these = graph.n_partitions({*graph.partition_of, *indices})
    it, stay = ("it", "stays") if len(indices) == 1 else ("them", "stay")
    effect = (
        f"without {it} there would be {plural(with_these, 'partition')}, not {partitions}"
        if with_these < partitions
        else f"the number of partitions ({partitions}) does not depend on {it} alone"
    )
    amount, known = _amount(graph, tensors)
    return graph.finding(
        "partition_splits",
        indices,
        f"{graph.names(indices)} ({nodes(indices)}) {stay} on the CPU: {reason}; {effect}. "
        f"{amount}",
        f"export the model without {it}, or with {it} before or after all delegated operators",
        operators=len(indices),
        partitions=partitions,
        partitions_without=with_these,
        tensors_crossing=len(tensors),
        bytes_crossing=known,
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


def _crossing(graph: Graph) -> set[int]:
    """Tensors that go from the device to the CPU or back between operators."""
    inside = graph.partition_of
    return {
        tensor
        for tensor, producer in graph.producer.items()
        if graph.specs[tensor].const is None
        and (producer not in inside) in {i in inside for i in graph.consumers.get(tensor, ())}
    }


def _by_reason(graph: Graph, left: list[int]) -> list[tuple[str, list[int]]]:
    """Operators grouped by name and kind of reason: the first one's reason, and all indices."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index in left:
        kind = _SPECIFIC.sub("", graph.reasons.get(index) or "")
        groups.setdefault((graph.nodes[index].name, kind), []).append(index)
    ordered = sorted(groups.values(), key=lambda indices: -len(indices))
    return [(graph.reasons.get(indices[0]) or "", indices) for indices in ordered]


# ---- shapes


def _dynamic_shapes(graph: Graph) -> Iterator[Finding]:
    """Operators whose output shapes depend on data, and how many operators depend on them."""
    dynamic = {node.index for node in graph.nodes if _is_dynamic(node.inputs)}
    sources = [n.index for n in graph.nodes if n.index not in dynamic and _is_dynamic(n.outputs)]
    if sources:
        yield graph.finding(
            "dynamic_shapes",
            sources,
            f"the output shape of {graph.names(sources)} ({nodes(sources)}) depends on data; "
            f"{plural(len(dynamic), 'operator')} downstream with shapes known only at run time",
            "use a variant with a fixed, padded size (TOPK_V2 or padded suppression instead of "
            "WHERE, a constant shape for RESHAPE)",
            sources=len(sources),
            operators_behind=len(dynamic),
        )


def _is_dynamic(specs: Specs) -> bool:
    return any(spec is not None and spec.is_dynamic for spec in specs)


def _free_dimensions(graph: Graph) -> Iterator[Finding]:
    for index in graph.subgraph.inputs:
        tensor = graph.tensors[index]
        signature = tensor.shape_signature or ()
        free = sum(n < 0 for n in signature)
        if free:
            yield graph.finding(
                "free_dimensions",
                graph.consumers.get(index, ()),
                f"input {tensor.name!r} is {list(signature)}: {plural(free, 'free dimension')}, "
                f"declared as {list(tensor.shape)}; every input shape is compiled once, "
                "and the latest 16 programs are kept",
                "use few shapes: batches can be padded (JaxDelegate(pad_batch=True) with "
                "jaxdelegate.Interpreter), other dimensions only if the model ignores what is "
                "added",
                dimensions=free,
            )


def _wrong_shapes(graph: Graph) -> Iterator[Finding]:
    if graph.problem is not None:
        return
    wrong = []
    for node in graph.nodes:
        for index, spec in zip(node.operator.outputs, node.outputs, strict=True):
            if index < 0 or spec is None or spec.is_dynamic:
                continue
            tensor = graph.tensors[index]
            is_free = -1 in (tensor.shape_signature or ())
            if tensor.shape and tensor.shape != spec.shape and not is_free:
                wrong.append((node.index, tensor, spec.shape))
    if wrong:
        _, tensor, shape = wrong[0]
        yield graph.finding(
            "declared_shapes",
            dict.fromkeys(i for i, _, _ in wrong),
            f"{plural(len(wrong), 'tensor')} whose shape is not the declared one, first "
            f"T#{tensor.index} {tensor.name!r}: declared {list(tensor.shape)}, is {list(shape)}",
            "none needed: shapes follow from the inputs; tools that trust the file are wrong",
            tensors=len(wrong),
        )


def _quantized_modes(subgraph: SubgraphAnalysis) -> Iterator[Finding]:
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


_GRAPH_RULES: Sequence[Callable[[Graph], Iterator[Finding]]] = (
    _unplannable,
    _partition_splits,
    _dynamic_shapes,
    _free_dimensions,
    advice_content.float16_constants,
    advice_content.float16_sums,
    advice_content.float16_growth,
    advice_content.tensor_core_channels,
    advice_content.space_to_batch,
    advice_content.movement_chains,
    advice_content.large_tables,
    advice_content.unused_tensors,
    _wrong_shapes,
)
