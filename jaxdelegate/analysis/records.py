"""The results of an analysis as records, as text and as JSON."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxdelegate.analysis.units import data, operations
from jaxdelegate.costs import Cost
from jaxdelegate.model.descriptions import ModelDescription, TensorDescription
from jaxdelegate.model.records import SignatureDef
from jaxdelegate.report.json_records import Derived, plain
from jaxdelegate.report.tables import table
from jaxdelegate.text import WIDTH, plural, printable, shortened, wrapped

SCHEMA_VERSION = 1  # the JSON's; changes when a field changes its meaning or is removed


@dataclasses.dataclass(frozen=True)
class TensorAnalysis:
    index: int
    name: str  # as the file has it
    type: str  # the element type as the schema names it: "FLOAT32"
    shape: tuple[int, ...]  # propagated from the inputs' declared shapes
    declared_shape: tuple[int, ...]  # as the file has it; only a hint
    shape_signature: tuple[int, ...] | None  # with -1 for free dimensions; None: none is free
    kind: str  # "input", "output", "constant", "variable", "activation" or "unused"
    is_dynamic: bool  # whether the shape depends on data; `shape` is then the declared one
    buffer: int  # the index of the file's buffer with its data; 0: none
    stored_bytes: int  # the size of that data
    nbytes: int | None  # its size at run time; None: it depends on data
    data: str | None  # the first values of a constant, as text; None: it is not a constant
    quantization: str | None  # scale and zero point, as text; None: it is not quantized


@dataclasses.dataclass(frozen=True)
class OperatorAnalysis:
    index: int
    name: str  # the builtin operator's, or the custom operator's
    version: int
    custom: bool
    inputs: tuple[int, ...]  # tensor indices, -1 for an absent one
    outputs: tuple[int, ...]  # tensor indices
    options: Mapping[str, Any]  # its parameters by their name in schema.fbs
    subgraphs: tuple[tuple[str, int], ...]  # (option, index) of those that it calls
    cost: Cost  # one run's without fusion, which moves fewer bytes
    folded: bool  # whether its outputs are known before the first invoke, so that it costs nothing
    partition: int | None
    reason: str | None
    in_floats: bool = False  # quantized, but run in floats: quant_mode="auto" on a CPU
    other_reason: str | None = None  # with the other `quant_mode`, if there is one
    latency_ms: float | None = None  # measured, with --op_profile
    error: float | None = None  # its output's, measured, with --layer_errors

    @property
    def delegated(self) -> bool:
        return self.partition is not None


@dataclasses.dataclass(frozen=True)
class PartitionAnalysis:
    """Operators that run as one program; its inputs and outputs are transferred at each invoke."""

    number: int
    operators: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bytes_in: int | None
    bytes_out: int | None
    flops: int | None


@dataclasses.dataclass(frozen=True)
class OtherMode:
    quant_mode: str
    delegated: int
    partitions: int


@dataclasses.dataclass(frozen=True)
class SubgraphAnalysis:
    index: int
    name: str
    inputs: tuple[int, ...]  # tensor indices
    outputs: tuple[int, ...]  # tensor indices
    tensors: tuple[TensorAnalysis, ...]
    operators: tuple[OperatorAnalysis, ...]  # all of them, in execution order
    partitions: tuple[PartitionAnalysis, ...]
    summary: str  # how many operations run where, in one line
    problem: str | None  # why it cannot be planned with its declared shapes; None: it can
    called_by: tuple[tuple[int, int], ...]  # (subgraph, operator) of every caller
    other_mode: OtherMode | None  # the plan with the other `quant_mode`; None: nothing is quantized

    @property
    def flops(self) -> int:
        return sum(op.cost.flops or 0 for op in self.operators)

    @property
    def bytes(self) -> int:
        """Bytes that all operators read and write if each runs alone, as far as known."""
        return sum(op.cost.bytes or 0 for op in self.operators)

    @property
    def uncounted(self) -> tuple[int, ...]:
        return tuple(op.index for op in self.operators if op.cost.flops is None)

    @property
    def left(self) -> tuple[OperatorAnalysis, ...]:
        """The operators that stay on the host, without initialization, which runs once."""
        return tuple(op for op in self.operators if not op.delegated and op.name != "CALL_ONCE")


@dataclasses.dataclass(frozen=True)
class Sizes:
    file: int
    buffers: int  # the data of all buffers
    zero_buffers: int  # the buffers with only zeros
    unused_buffers: int  # the buffers that neither a tensor nor metadata refers to
    metadata: int  # the buffers that metadata refers to
    external: int  # data of tensors in files next to this one
    subgraphs: tuple[int, ...]  # the constants of each subgraph; shared ones count in each


@dataclasses.dataclass(frozen=True)
class Finding:
    kind: str  # the name of the rule, for example "partition_splits"
    subgraph: int
    operators: tuple[int, ...]  # the operators concerned; may be empty
    message: str  # what it is, with numbers
    remedy: str  # what to do about it
    numbers: Mapping[str, float]  # the numbers of the message by name: bytes, operations, counts


@dataclasses.dataclass(frozen=True)
class ModelAnalysis:
    """What is known about a model without running it. `str()` is the report as text."""

    source: str  # its path, or "<bytes>"
    description: str  # as the file has it
    version: str  # jaxdelegate's
    delegate: str
    interpreter: str  # whose partitions: "jaxdelegate" or "litert"
    device: str  # where partitions run, as reasons name it
    options: Mapping[str, Any]  # the delegate's, by name
    subgraphs: tuple[SubgraphAnalysis, ...]  # the main one first
    signatures: tuple[SignatureDef, ...]  # in the file's order
    metadata: Mapping[str, int]
    sizes: Sizes  # where the bytes are
    findings: tuple[Finding, ...]  # advice, the most important rules first
    # What the file says of its inputs and outputs; None: nothing, or `described_problem` says why.
    described: ModelDescription | None = None
    described_problem: str | None = None

    @property
    def is_compatible(self) -> bool:
        return not any(subgraph.left for subgraph in self.entries)

    @property
    def entries(self) -> tuple[SubgraphAnalysis, ...]:
        """The entry points: the main subgraph and those of signatures."""
        indices = {0, *(signature.subgraph for signature in self.signatures)}
        return tuple(subgraph for subgraph in self.subgraphs if subgraph.index in indices)

    def to_json(self, indent: int | None = None) -> str:
        """The records as JSON objects by field name; NaN and infinities are strings."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        record |= {f.name: json_value(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return record

    def __str__(self) -> str:
        return report(self)


_DERIVED: Derived = {SubgraphAnalysis: ("flops", "bytes"), Cost: ("bytes",)}


def json_value(value: Any) -> Any:
    """A value as JSON types; what JSON does not have, NaN and infinities too, is a string."""
    return plain(value, derived=_DERIVED, non_finite=str)


# ---- as text; the format of operators and tensors is that of `tf.lite.experimental.Analyzer`
# (python/analyzer_wrapper/model_analyzer.cc)

_RULE = "-" * 63
_INDENT = "  "
_KEY = 70  # characters of a signature's key, of its inputs' and outputs' names, and of words
_LABELS = 3  # names of classes
_OPERATOR = 24  # characters of an operator's name in the table of costs
_CALLS = {
    "init_subgraph_index": "",
    "then_subgraph_index": ", Then: ",
    "else_subgraph_index": ", Else: ",
    "cond_subgraph_index": ", Cond: ",
    "body_subgraph_index": ", Body: ",
}


def report(analysis: ModelAnalysis, *, gpu_compatibility: bool = False) -> str:
    """`gpu_compatibility` adds Analyzer's lines of what is not delegated."""
    source = _name(analysis.source, WIDTH - len("===  ==="))
    parts = [f"=== {source} ===", "", *_head(analysis)]
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
    parts += [*_signatures(analysis), *_described(analysis)]
    parts += [_RULE, *_sizes(analysis), _RULE, *_advice(analysis)]
    return wrapped("\n".join(parts))


def _name(text: str, most: int = 40) -> str:
    return shortened(printable(text), most)


def _head(analysis: ModelAnalysis) -> Iterator[str]:
    count = len(analysis.subgraphs)
    yield f"Your TFLite model has '{count}' subgraph(s). T#2 is tensor 2 of the main subgraph,"
    yield "T#1_2 that of Subgraph#1; Op#0 is the operator that runs first."
    if analysis.interpreter == "litert":
        yield "Partitions are those of the stock interpreter (ai_edge_litert)."
    if analysis.description:
        yield f"Description: {printable(analysis.description)}"
    yield ""


def _subgraph(subgraph: SubgraphAnalysis) -> Iterator[str]:
    i = subgraph.index
    name = f" {_name(subgraph.name)}" if subgraph.name else ""
    lists = f"({refs(subgraph.inputs, i)}) -> [{refs(subgraph.outputs, i)}]"
    yield f"Subgraph#{i}{name}{lists}"
    for op in subgraph.operators:
        yield f"  {_operator(op, subgraph)}"
    yield ""
    yield f"Tensors of Subgraph#{i}"
    for tensor in subgraph.tensors:
        yield f"  {_tensor(tensor, i)}"
    yield ""
    yield f"Costs and delegation of Subgraph#{i}"
    yield from (f"{_INDENT}{line}" for line in _costs(subgraph))
    yield ""


def _ref(tensor: int, subgraph: int) -> str:
    return f"T#{tensor}" if subgraph == 0 or tensor < 0 else f"T#{subgraph}_{tensor}"


def refs(tensors: Iterable[int], subgraph: int) -> str:
    """Tensors as reports name them: `T#2, T#3`, or `T#1_2` in subgraph 1."""
    return ", ".join(_ref(tensor, subgraph) for tensor in tensors)


def _operator(op: OperatorAnalysis, subgraph: SubgraphAnalysis) -> str:
    inputs = ", ".join(_input(tensor, subgraph) for tensor in op.inputs)
    calls = "".join(
        f"{_CALLS.get(field, ', Calls: ')}Subgraph#{index}" for field, index in op.subgraphs
    )
    outputs = refs(op.outputs, subgraph.index)
    return f"Op#{op.index} {_name(op.name)}({inputs}{calls}) -> [{outputs}]"


def _input(tensor: int, subgraph: SubgraphAnalysis) -> str:
    ref = _ref(tensor, subgraph.index)
    if tensor < 0:
        return ref
    described = subgraph.tensors[tensor]
    return f"{ref}{described.data}" if described.type == "INT32" and described.data else ref


def _tensor(tensor: TensorAnalysis, subgraph: int) -> str:
    key, shape = "shape", tensor.declared_shape
    if tensor.shape_signature is not None:
        key, shape = "shape_signature", tensor.shape_signature
    line = f"{_ref(tensor.index, subgraph)}({_name(tensor.name)}) {key}:{list(shape)}"
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


def _costs(subgraph: SubgraphAnalysis) -> Iterator[str]:
    other = subgraph.other_mode
    head = ["#", "operator", "version", "FLOP", "bytes", "FLOP/B", "runs on"]
    rows = [head + ([other.quant_mode] if other else []) + ["why not delegated, notes"]]
    rows += [_cost_row(op, with_other=other is not None) for op in subgraph.operators]
    yield from table(rows, right={0, 2, 3, 4, 5}, width=WIDTH - len(_INDENT))
    yield from conclusions(subgraph)


def conclusions(subgraph: SubgraphAnalysis) -> Iterator[str]:
    other = subgraph.other_mode
    if subgraph.problem:
        yield f"No plan for the declared shapes: {printable(subgraph.problem)}"
    yield subgraph.summary
    if names := [op.name for op in subgraph.operators if op.in_floats]:
        counts = (f"{names.count(name)} {name}" for name in sorted({*names}))
        yield f"In floats, as they are faster so or have no integer kernel: {', '.join(counts)}."
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
        f"Total: {operations(subgraph.flops)} per invoke, {data(subgraph.bytes)} read and written "
        f"if each operator runs alone{unknown}."
    )
    for p in subgraph.partitions:
        yield (
            f"Partition {p.number}: {plural(len(p.operators), 'operator')}, {operations(p.flops)}, "
            f"{data(p.bytes_in)} in, {data(p.bytes_out)} out."
        )


def _cost_row(op: OperatorAnalysis, *, with_other: bool) -> list[str]:
    other = [] if not with_other else ["CPU" if op.other_reason else "delegated"]
    return [
        str(op.index),
        _name(op.name, _OPERATOR),
        str(op.version),
        *cost_cells(op),
        place(op),
        *other,
        printable(notes(op)),
    ]


def cost_cells(op: OperatorAnalysis) -> tuple[str, str, str]:
    intensity = op.cost.intensity
    return (
        operations(op.cost.flops).removesuffix("FLOP").strip(),
        data(op.cost.bytes),
        "" if intensity is None else f"{intensity:.3g}",
    )


def place(op: OperatorAnalysis) -> str:
    """Where an operator runs: "CPU", "partition 0" or "partition 0, floats"."""
    where = f"partition {op.partition}" if op.delegated else "CPU"
    return where + (", floats" if op.in_floats else "")


def notes(op: OperatorAnalysis) -> str:
    parts = [op.reason if not op.delegated else None, op.cost.note]
    if op.other_reason and op.other_reason != op.reason:
        parts.insert(1, f"otherwise: {op.other_reason}")
    return "; ".join(part for part in parts if part)


def _incompatible(analysis: ModelAnalysis, subgraph: SubgraphAnalysis) -> Iterator[str]:
    if subgraph.left and subgraph in analysis.entries:
        nodes = ", ".join(str(op.index) for op in subgraph.left)
        yield (
            f"GPU COMPATIBILITY WARNING: Subgraph#{subgraph.index} has GPU delegate compatibility "
            f"issues at nodes {nodes} with {analysis.delegate} of jaxdelegate {analysis.version}"
        )
        yield ""


def _signatures(analysis: ModelAnalysis) -> Iterator[str]:
    if not analysis.signatures:
        return
    yield _RULE
    yield f"Your TFLite model has '{len(analysis.signatures)}' signature_def(s)."
    yield ""
    for i, signature in enumerate(analysis.signatures):
        yield f"Signature#{i} key: '{_name(signature.key, _KEY)}'"
        yield f"- Subgraph: Subgraph#{signature.subgraph}"
        for kind, tensors in (("Inputs", signature.inputs), ("Outputs", signature.outputs)):
            yield f"- {kind}:"
            for name, tensor in tensors.items():
                shown = _name(name, _KEY)
                yield f"    '{shown}' : {_ref(tensor, signature.subgraph)}"
        yield ""


def _described(analysis: ModelAnalysis) -> Iterator[str]:
    described, main = analysis.described, analysis.subgraphs[0]
    if analysis.described_problem is not None:
        yield from (_RULE, f"Metadata: {printable(analysis.described_problem)}", "")
    if described is None:
        return
    yield _RULE
    version = described.version and f"version {described.version}"
    about = (described.name, version, described.author)
    yield f"Metadata: {printable(', '.join(filter(None, about)) or 'no name')}"
    if described.description:
        yield f"{_INDENT}{printable(described.description)}"
    tensors = (*described.inputs, *described.outputs)
    for index, tensor in zip((*main.inputs, *main.outputs), tensors, strict=False):
        yield f"{_INDENT}{_ref(index, 0)} {_described_tensor(tensor)}"
    yield ""


def _described_tensor(t: TensorDescription) -> str:
    facts = [t.content] if t.content else []
    if t.normalization is not None:
        mean, std = (
            f"{values[0]:g}" if len(set(values)) == 1 else str([float(f"{v:g}") for v in values])
            for values in (t.normalization.mean, t.normalization.std)
        )
        facts.append(f"(x - {mean}) / {std}")
    if t.labels:
        first = ", ".join(_name(label) for label in t.labels[:_LABELS])
        more = ", ..." if len(t.labels) > _LABELS else ""
        facts.append(f"{plural(len(t.labels), 'label')}: {first}{more}")
    elif t.files:
        facts.append(f"files: {', '.join(map(_name, t.files))}")
    return f"{_name(t.name, _KEY)}: {'; '.join(facts) or 'nothing more'}"


def _sizes(analysis: ModelAnalysis) -> Iterator[str]:
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


def _advice(analysis: ModelAnalysis) -> Iterator[str]:
    if not analysis.findings:
        yield "No advice."
        return
    yield f"Advice ({len(analysis.findings)})"
    many = len(analysis.subgraphs) > 1
    for finding in analysis.findings:
        where = f"Subgraph#{finding.subgraph}: " if many else ""
        message = " ".join(_name(word, _KEY) for word in finding.message.split(" "))
        yield f"* [{finding.kind}] {where}{message}"
        yield f"  -> {printable(finding.remedy)}"
