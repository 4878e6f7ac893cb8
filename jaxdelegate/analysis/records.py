"""What an analysis finds, as plain records; `ModelAnalysis.to_json` writes them out."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from jaxdelegate.analysis import text
from jaxdelegate.analysis.costs import Cost
from jaxdelegate.report.json_records import Derived, plain

SCHEMA_VERSION = 1  # of the JSON; grows when a field changes its meaning or goes away


@dataclasses.dataclass(frozen=True)
class TensorAnalysis:
    """A tensor of a subgraph.

    Attributes:
        index: its position in the subgraph.
        name: as the file has it.
        type: the element type as the schema names it: "FLOAT32".
        shape: propagated from the inputs' declared shapes.
        declared_shape: what the file says; a hint only.
        shape_signature: `declared_shape` with -1 for free dimensions; None: none are.
        kind: "input", "output", "constant", "variable", "activation" or "unused".
        is_dynamic: the shape depends on data; `shape` is the declared one then.
        buffer: where the file keeps its data; 0: nowhere.
        stored_bytes: the size of that data.
        nbytes: at run time; None: data decides.
        data: the first values of a constant, as text; None where there are none.
        quantization: scale and zero point, as text; None: it is not quantized.
    """

    index: int
    name: str
    type: str
    shape: tuple[int, ...]
    declared_shape: tuple[int, ...]
    shape_signature: tuple[int, ...] | None
    kind: str
    is_dynamic: bool
    buffer: int
    stored_bytes: int
    nbytes: int | None
    data: str | None
    quantization: str | None


@dataclasses.dataclass(frozen=True)
class OperatorAnalysis:
    """An operator: what it is, what it costs, and where it runs.

    Attributes:
        index: its position, which is the order of execution.
        name: the builtin operator's, or the custom operator's.
        version: the operator version that the file asks for.
        custom: whether it is a custom operator.
        inputs: tensor indices, -1 for an absent one.
        outputs: tensor indices.
        options: its parameters by their name in schema.fbs.
        subgraphs: those that it calls, by the option that names them.
        cost: of one run, per operator: fusion makes a partition cheaper in bytes.
        folded: whether its outputs are known before the first invoke, so that it costs nothing.
        partition: which partition takes it; None: it stays on the CPU.
        reason: why it is not delegated; None: it is.
        other_reason: likewise with the other `quant_mode`; None also where there is no other.
        latency_ms: as measured, where a profile was given.
        error: of its output as measured, where a comparison was given.
    """

    index: int
    name: str
    version: int
    custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    subgraphs: tuple[tuple[str, int], ...]
    cost: Cost
    folded: bool
    partition: int | None
    reason: str | None
    other_reason: str | None = None
    latency_ms: float | None = None
    error: float | None = None

    @property
    def delegated(self) -> bool:
        """Whether a partition takes it."""
        return self.partition is not None


@dataclasses.dataclass(frozen=True)
class PartitionAnalysis:
    """Operators that run as one program; tensors cross its border at each invoke."""

    number: int
    operators: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bytes_in: int | None
    bytes_out: int | None
    flops: int | None


@dataclasses.dataclass(frozen=True)
class OtherMode:
    """The plan with the other `quant_mode`, for a quantized model."""

    quant_mode: str
    delegated: int
    partitions: int


@dataclasses.dataclass(frozen=True)
class SubgraphAnalysis:
    """One subgraph.

    Attributes:
        index: its position; the main one is 0.
        name: as the file has it.
        inputs: tensor indices.
        outputs: tensor indices.
        tensors: all of them.
        operators: all of them, in execution order.
        partitions: what the delegate takes.
        summary: how many operations run where, in one line.
        problem: why it cannot be planned with the shapes that it declares; None: it can.
        called_by: (subgraph, operator) of every caller.
        other_mode: None where nothing is quantized.
    """

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tensors: tuple[TensorAnalysis, ...]
    operators: tuple[OperatorAnalysis, ...]
    partitions: tuple[PartitionAnalysis, ...]
    summary: str
    problem: str | None
    called_by: tuple[tuple[int, int], ...]
    other_mode: OtherMode | None

    @property
    def flops(self) -> int:
        """Of all operators whose count is known."""
        return sum(op.cost.flops or 0 for op in self.operators)

    @property
    def bytes(self) -> int:
        """Read and written by all operators, each run alone, as far as known."""
        return sum(op.cost.bytes or 0 for op in self.operators)

    @property
    def uncounted(self) -> tuple[int, ...]:
        """Operators whose arithmetic is not known before the run."""
        return tuple(op.index for op in self.operators if op.cost.flops is None)

    @property
    def left(self) -> tuple[OperatorAnalysis, ...]:
        """The operators that stay on the CPU."""
        return tuple(op for op in self.operators if not op.delegated)


@dataclasses.dataclass(frozen=True)
class SignatureAnalysis:
    """Names for a subgraph's inputs and outputs: tensor indices by name."""

    key: str
    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Where a file's bytes are.

    Attributes:
        file: all of it, without external buffers.
        buffers: data of buffers.
        zero_buffers: those buffers that hold zeros only.
        unused_buffers: those that no tensor and no metadata refers to.
        metadata: those that metadata refers to.
        external: data of tensors in files beside this one.
        subgraphs: constants of each subgraph; one shared by two counts in both.
    """

    file: int
    buffers: int
    zero_buffers: int
    unused_buffers: int
    metadata: int
    external: int
    subgraphs: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One piece of advice.

    Attributes:
        kind: which rule found it, say "partition_splits".
        subgraph: where.
        operators: which operators it is about; may be empty.
        message: what there is, with numbers.
        remedy: what to do about it.
        numbers: the numbers of the message by name: bytes, operations, counts.
    """

    kind: str
    subgraph: int
    operators: tuple[int, ...]
    message: str
    remedy: str
    numbers: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class ModelAnalysis:
    """All that is known of a model without running it. `str()` is the report as text.

    Attributes:
        source: its path, or "<bytes>".
        description: as the file has it.
        version: of jaxdelegate.
        delegate: the delegate's name.
        device: where partitions run, as it stands in a sentence.
        options: the delegate's, by name.
        subgraphs: the main one first.
        signatures: in the file's order.
        metadata: the size of each entry by its name.
        sizes: where the bytes are.
        findings: advice, the weightiest rules first.
    """

    source: str
    description: str
    version: str
    delegate: str
    device: str
    options: Mapping[str, Any]
    subgraphs: tuple[SubgraphAnalysis, ...]
    signatures: tuple[SignatureAnalysis, ...]
    metadata: Mapping[str, int]
    sizes: Sizes
    findings: tuple[Finding, ...]

    @property
    def is_compatible(self) -> bool:
        """Whether the delegate takes every operator of every subgraph that a host may run."""
        return not any(subgraph.left for subgraph in self.entries)

    @property
    def entries(self) -> tuple[SubgraphAnalysis, ...]:
        """The subgraphs that are run from outside: the main one, and those of signatures."""
        wanted = {0, *(signature.subgraph for signature in self.signatures)}
        return tuple(subgraph for subgraph in self.subgraphs if subgraph.index in wanted)

    def to_json(self, indent: int | None = None) -> str:
        """The records as JSON: objects by field name; numbers that JSON lacks as strings."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """The records as dictionaries, lists, strings and numbers only."""
        record: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        record |= {f.name: json_value(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return record

    def __str__(self) -> str:
        """The report."""
        return text.report(self)


_DERIVED: Derived = {SubgraphAnalysis: ("flops", "bytes"), Cost: ("bytes",)}


def json_value(value: Any) -> Any:
    """A value as JSON's own types; what JSON cannot say, NaN and infinities too, as a string."""
    return plain(value, derived=_DERIVED, non_finite=str)
