"""The analysis as text: operators and tensors as `tf.lite.experimental.Analyzer` prints them.

Source of the lines' form: python/analyzer_wrapper/model_analyzer.cc.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jaxdelegate.analysis.units import data, operations, plural

if TYPE_CHECKING:  # they print themselves with this module
    from jaxdelegate.analysis.records import (
        ModelAnalysis,
        OperatorAnalysis,
        SubgraphAnalysis,
        TensorAnalysis,
    )

_RULE = "-" * 63
_CALLS = {
    "init_subgraph_index": "",
    "then_subgraph_index": ", Then: ",
    "else_subgraph_index": ", Else: ",
    "cond_subgraph_index": ", Cond: ",
    "body_subgraph_index": ", Body: ",
}


def report(analysis: "ModelAnalysis", *, gpu_compatibility: bool = False) -> str:
    """The whole report.

    Args:
        analysis: what to print.
        gpu_compatibility: with Analyzer's lines of which nodes the delegate does not take.
    """
    parts = [f"=== {printable(analysis.source)} ===", "", *_head(analysis)]
    for subgraph in analysis.subgraphs:
        parts += _subgraph(subgraph)
        if gpu_compatibility:
            parts += _incompatible(analysis, subgraph)
    if gpu_compatibility and analysis.is_compatible:
        parts += [
            f"Your model looks compatible with GPU delegate ({analysis.delegate} of jaxdelegate "
            f"{analysis.version}, on {analysis.device}): every operator is delegated.",
            "",
        ]
    parts += _signatures(analysis)
    parts += [_RULE, *_sizes(analysis), _RULE, *_advice(analysis)]
    return "\n".join(parts)


def printable(text: str) -> str:
    """Names from a file on one line: what does not print is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _head(analysis: "ModelAnalysis") -> Iterator[str]:
    count = len(analysis.subgraphs)
    yield f"Your TFLite model has '{count}' subgraph(s). T#2 is tensor 2 of the main subgraph,"
    yield "T#1_2 that of Subgraph#1; Op#0 is the operator that runs first."
    if analysis.description:
        yield f"Description: {printable(analysis.description)}"
    yield ""


def _subgraph(subgraph: "SubgraphAnalysis") -> Iterator[str]:
    i = subgraph.index
    name = f" {printable(subgraph.name)}" if subgraph.name else ""
    lists = f"({_refs(subgraph.inputs, i)}) -> [{_refs(subgraph.outputs, i)}]"
    yield f"Subgraph#{i}{name}{lists}"
    for op in subgraph.operators:
        yield f"  {_operator(op, subgraph)}"
    yield ""
    yield f"Tensors of Subgraph#{i}"
    for tensor in subgraph.tensors:
        yield f"  {_tensor(tensor, i)}"
    yield ""
    yield f"Costs and delegation of Subgraph#{i}"
    yield from (f"  {line}" for line in _costs(subgraph))
    yield ""


def _ref(tensor: int, subgraph: int) -> str:
    return f"T#{tensor}" if subgraph == 0 or tensor < 0 else f"T#{subgraph}_{tensor}"


def _refs(tensors: Iterable[int], subgraph: int) -> str:
    return ", ".join(_ref(tensor, subgraph) for tensor in tensors)


def _operator(op: "OperatorAnalysis", subgraph: "SubgraphAnalysis") -> str:
    inputs = ", ".join(_input(tensor, subgraph) for tensor in op.inputs)
    calls = "".join(
        f"{_CALLS.get(field, ', Calls: ')}Subgraph#{index}" for field, index in op.subgraphs
    )
    outputs = _refs(op.outputs, subgraph.index)
    return f"Op#{op.index} {printable(op.name)}({inputs}{calls}) -> [{outputs}]"


def _input(tensor: int, subgraph: "SubgraphAnalysis") -> str:
    ref = _ref(tensor, subgraph.index)
    if tensor < 0:
        return ref
    described = subgraph.tensors[tensor]
    return f"{ref}{described.data}" if described.type == "INT32" and described.data else ref


def _tensor(tensor: "TensorAnalysis", subgraph: int) -> str:
    key, shape = "shape", tensor.declared_shape
    if tensor.shape_signature is not None:
        key, shape = "shape_signature", tensor.shape_signature
    line = f"{_ref(tensor.index, subgraph)}({printable(tensor.name)}) {key}:{list(shape)}"
    line += f", type:{tensor.type}"
    if tensor.stored_bytes:
        line += f" RO {tensor.stored_bytes} bytes, buffer: {tensor.buffer}, data:{tensor.data}"
    if tensor.kind in ("variable", "unused"):
        line += f", {tensor.kind}"
    if tensor.quantization:
        line += f", {tensor.quantization}"
    if tensor.is_dynamic:
        line += ", shape depends on data"
    elif tensor.shape != shape and tensor.kind != "unused":
        line += f", runs as {list(tensor.shape)}"
    return line


def _costs(subgraph: "SubgraphAnalysis") -> Iterator[str]:
    other = subgraph.other_mode
    head = ["#", "operator", "version", "FLOP", "bytes", "FLOP/B", "runs on"]
    rows = [head + ([other.quant_mode] if other else []) + ["why not delegated, notes"]]
    rows += [_cost_row(op, with_other=other is not None) for op in subgraph.operators]
    yield from table(rows, right={0, 2, 3, 4, 5})
    if subgraph.problem:
        yield f"No plan for the declared shapes: {printable(subgraph.problem)}"
    yield subgraph.summary
    if other:
        yield (
            f"With quant_mode={other.quant_mode!r}: {other.delegated} of "
            f"{plural(len(subgraph.operators), 'operator')} delegated, "
            f"in {plural(other.partitions, 'partition')}."
        )
    unknown = (
        f"; {plural(len(subgraph.uncounted), 'operator')} not counted" if subgraph.uncounted else ""
    )
    yield (
        f"Total: {operations(subgraph.flops)} per invoke, {data(subgraph.bytes)} touched "
        f"if each operator runs alone{unknown}."
    )
    for p in subgraph.partitions:
        yield (
            f"Partition {p.number}: {plural(len(p.operators), 'operator')}, {operations(p.flops)}, "
            f"{data(p.bytes_in)} in, {data(p.bytes_out)} out."
        )


def _cost_row(op: "OperatorAnalysis", *, with_other: bool) -> list[str]:
    where = f"partition {op.partition}" if op.delegated else "CPU"
    other = [] if not with_other else ["CPU" if op.other_reason else "delegated"]
    intensity = op.cost.intensity
    notes = [op.reason if not op.delegated else None, op.cost.note]
    if op.other_reason and op.other_reason != op.reason:
        notes.insert(1, f"otherwise: {op.other_reason}")
    return [
        str(op.index),
        printable(op.name),
        str(op.version),
        operations(op.cost.flops).removesuffix("FLOP").strip(),
        data(op.cost.bytes),
        "" if intensity is None else f"{intensity:.3g}",
        where,
        *other,
        printable("; ".join(note for note in notes if note)),
    ]


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Rows with aligned columns, the last one ragged; `right` names those flushed right."""
    right = frozenset(right)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines


def _incompatible(analysis: "ModelAnalysis", subgraph: "SubgraphAnalysis") -> Iterator[str]:
    if subgraph.left and subgraph in analysis.entries:
        nodes = ", ".join(str(op.index) for op in subgraph.left)
        yield (
            f"GPU COMPATIBILITY WARNING: Subgraph#{subgraph.index} has GPU delegate compatibility "
            f"issues at nodes {nodes} with {analysis.delegate} of jaxdelegate {analysis.version}"
        )
        yield ""


def _signatures(analysis: "ModelAnalysis") -> Iterator[str]:
    if not analysis.signatures:
        return
    yield _RULE
    yield f"Your TFLite model has '{len(analysis.signatures)}' signature_def(s)."
    yield ""
    for i, signature in enumerate(analysis.signatures):
        yield f"Signature#{i} key: '{printable(signature.key)}'"
        yield f"- Subgraph: Subgraph#{signature.subgraph}"
        for kind, tensors in (("Inputs", signature.inputs), ("Outputs", signature.outputs)):
            yield f"- {kind}:"
            for name, tensor in tensors.items():
                yield f"    '{printable(name)}' : {_ref(tensor, signature.subgraph)}"
        yield ""


def _sizes(analysis: "ModelAnalysis") -> Iterator[str]:
    sizes = analysis.sizes
    rows: list[tuple[str, int]] = [
        ("Non-data buffer size", sizes.file - sizes.buffers),
        ("Total data buffer size", sizes.buffers),
    ]
    if len(sizes.subgraphs) > 1:
        rows += [(f"- {f'Subgraph#{i}':<12}", n) for i, n in enumerate(sizes.subgraphs)]
    rows += [
        ("(Zero value buffers)", sizes.zero_buffers),
        ("(Unused buffers)", sizes.unused_buffers),
    ]
    rows += [("(Metadata)", sizes.metadata)] if sizes.metadata else []
    yield f"{'Model size':>24}: {sizes.file:10} bytes"
    for name, n in rows:
        yield f"{name:>24}: {n:10} bytes ({100 * n / max(sizes.file, 1):05.2f} %)"
    if sizes.external:
        yield f"{'External buffers':>24}: {sizes.external:10} bytes"


def _advice(analysis: "ModelAnalysis") -> Iterator[str]:
    if not analysis.findings:
        yield "No advice."
        return
    yield f"Advice ({len(analysis.findings)})"
    many = len(analysis.subgraphs) > 1
    for finding in analysis.findings:
        where = f"Subgraph#{finding.subgraph}: " if many else ""
        yield f"* [{finding.kind}] {where}{printable(finding.message)}"
        yield f"  -> {printable(finding.remedy)}"
