"""The rule of an operator, and what it depends on. Independent of jax and of the graph."""

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np

from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Grid, Specs, TensorSpec

Function = Callable[..., tuple[Any, ...]]  # (*arrays) -> operator outputs, then new states
Prepare = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A lowered operator that reads some constant inputs in another layout.

    `run` gets those inputs as `prepare[input position]` returns them; the compiler prepares a
    constant once and keeps the result on the device. Calling the object with all arrays in the
    file's layout prepares them first. A preparation uses array methods only (`reshape`,
    `transpose`, `astype`), because it gets arrays of numpy and of jax.

    Attributes:
        run: the function.
        prepare: by input position.
        derived: what `run` gets after its inputs, each prepared from the constant input in a
            position, and kept on the device as well.
        layout: what the preparations depend on; operators with equal layouts share prepared
            constants whatever the shapes of their inputs. None: the input shapes.
        takes_reduced: `run` also accepts float32 inputs as float16 or bfloat16.
        carries: the same of its inputs that are inputs of the program, which came so, or as a
            `QuantizedCache`. A result that is such an input, changed in part, has its type.
        takes_dtypes: `run` has an argument `dtypes`, those in which the program stores the results,
            and returns them so.
        is_on_grid: its result is already on the context's grid.
        may_overflow: a result beyond float16's range is infinite.
    """

    run: Function
    prepare: Mapping[int, Prepare]
    layout: Hashable = None
    takes_reduced: bool = False
    carries: bool = False
    takes_dtypes: bool = False
    is_on_grid: bool = False
    may_overflow: bool = False
    derived: Sequence[tuple[int, Prepare]] = ()

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        return self.run(
            *(self.prepare[i](a) if i in self.prepare else a for i, a in enumerate(arrays)),
            *(prepare(arrays[i]) for i, prepare in self.derived),
        )


@dataclasses.dataclass(frozen=True)
class StaticLoop:
    """A loop whose number of iterations is known when it is lowered.

    Attributes:
        trips: the number of iterations.
        kept: positions of values that the body returns unchanged.
    """

    trips: int
    kept: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KernelSet:
    """Which of our kernels a rule may call; JAX can transform none of these calls.

    Attributes:
        cpu: those of jaxdelegate/kernels.
        cpu_bfloat16: among them the one that multiplies bfloat16.
        cpu_int8_sums: they multiply int8 and add in one instruction.
        triton: the kernels for GPUs.
        mosaic: the kernel for TPUs.
        processors: a GPU's multiprocessors, by which its kernels choose tiles.
        splits_products: on a GPU, 1x1 convolutions with fewer tiles than processors share each sum
            among several programs.
    """

    cpu: bool = False
    cpu_bfloat16: bool = False
    cpu_int8_sums: bool = False
    triton: bool = False
    mosaic: bool = False
    processors: int = 132
    splits_products: bool = False


@dataclasses.dataclass(frozen=True)
class ProgramTraits:
    """What all operators of a program have in common, besides device and precision.

    Attributes:
        may_use_floats: in integer mode, an operator runs in floats where they are faster, or
            integers impossible.
        weights_vary: constants are parameters, in the file's layout at each call.
        follows_xnnpack: sums and products of floats may be infinite, as XNNPACK's are; LiteRT's
            other kernels return the largest number then, which lengthens programs. Normalization is
            one call even if a later operator quantizes its result.
        algorithms: names of algorithms, by `operator_key`.
    """

    may_use_floats: bool = False
    weights_vary: bool = False
    follows_xnnpack: bool = False
    algorithms: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class ResultUse:
    """How the program uses an operator's results.

    Attributes:
        quantized_later: a quantized operator depends on them.
        grid: its only result is rounded to this grid next; see `Lowered.is_on_grid`.
    """

    quantized_later: bool = False
    grid: Grid | None = None


@dataclasses.dataclass(frozen=True)
class SubgraphAccess:
    """The subgraphs that operators call; an index names one.

    Attributes:
        lower: (index, specs of its inputs) -> its function; None: the declared specs. With
            `is_closed=True` the function holds its constants, even if others become parameters.
        why_not: (index, specs of its inputs) -> why it cannot be lowered, or None.
        static_loop: (condition's index, body's, specs of the loop's inputs) -> the loop, if its
            number of iterations is known. None: loops are not going to be differentiated.
    """

    lower: Callable[..., Function]
    why_not: Callable[..., str | None]
    static_loop: Callable[[int, int, Specs], StaticLoop | None] | None = None


@dataclasses.dataclass(frozen=True)
class LoweringContext:
    """Everything outside the operator that a rule may depend on.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        precision: the dtypes of stored values, products and sums.
        quant_mode: how quantized operators are computed.
        enable_quant: whether XLA may run quantized operators.
        kernels: those that the rule may call.
        program: what all operators of the program have in common.
        subgraphs: those that the operator may call; None: they are out of reach.
        op_version: the operator's version in the file.
        intermediates: an integer LSTM's scales between its gates.
        result: how the program uses its results.
        algorithm: one of the rule's `algorithms`; None: the default.
    """

    platform: str = "cpu"
    precision: PrecisionPolicy = PrecisionPolicy()
    quant_mode: Literal["float_view", "integer"] = "float_view"
    enable_quant: bool = True
    kernels: KernelSet = KernelSet()
    program: ProgramTraits = ProgramTraits()
    subgraphs: SubgraphAccess | None = None
    op_version: int = 1
    intermediates: tuple[TensorSpec, ...] = ()
    result: ResultUse = ResultUse()
    algorithm: str | None = None

    @property
    def follows_kernels(self) -> bool:
        """Whether to add floats in LiteRT's order, because a later operator quantizes them."""
        is_by_integers = self.quant_mode == "integer" and self.platform == "cpu"
        return is_by_integers and self.result.quantized_later

    def why_not_subgraph(self, index: int, inputs: Specs | None = None) -> str | None:
        """Why a subgraph that the operator calls cannot be lowered for these inputs, or None."""
        if self.subgraphs is None:
            return "the delegate has no access to the subgraphs that the operator calls"
        return self.subgraphs.why_not(index, inputs)

    def lower_subgraph(self, index: int, inputs: Specs | None = None, **how: Any) -> Function:
        """A subgraph that the operator calls, as a function of its inputs: `SubgraphAccess.lower`.

        Raises:
            ValueError: it is out of reach.
        """
        if self.subgraphs is None:
            raise ValueError(f"no access to subgraph {index}")
        return self.subgraphs.lower(index, inputs, **how)

    def in_program(self, **changes: Any) -> Self:
        """The context in a program with other `ProgramTraits`."""
        return dataclasses.replace(self, program=dataclasses.replace(self.program, **changes))

    def on_gpu(self, precision: PrecisionPolicy) -> Self:
        """The context of an emulated GPU, on any device, under a precision policy."""
        return dataclasses.replace(self, platform="gpu", precision=precision, kernels=KernelSet())


OptionsT = TypeVar("OptionsT", bound=Options)
OptionsT_co = TypeVar("OptionsT_co", covariant=True)  # Options, or a protocol of some of them


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Op(Generic[OptionsT_co]):
    """One operator as its rule sees it.

    Attributes:
        context: everything outside the operator that its rule may depend on.
        options: its parameters.
        inputs: specs of its inputs; an optional input that the file leaves out is None, so read
            those through `optional`.
        outputs: specs of its outputs.
    """

    context: LoweringContext
    options: OptionsT_co
    inputs: Specs
    outputs: Specs

    def in_context(self, **changes: Any) -> Self:
        """Return this operator with other values for fields of its context."""
        return dataclasses.replace(self, context=dataclasses.replace(self.context, **changes))


WhyNot = Callable[[Op[OptionsT]], str | None]
Lower = Callable[[Op[OptionsT]], Function]
Algorithms = Callable[[Op[OptionsT]], Mapping[str, Any]]
# Positions of inputs that the operator updates.
States = Callable[[Op[OptionsT]], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class OpRule(Generic[OptionsT]):
    """One TFLite operator: its name, when it cannot be lowered, and how to lower it.

    `why_not` is total: it never raises, and `lower` lowers everything that it accepts.
    `is_identity_in_float_view`: it only changes how reals are stored (QUANTIZE, DEQUANTIZE).
    `host_reason`: why the operator stays on the host whatever its attributes (see host_only).
    `arity` is the number of leading inputs that are required, `results` the number of outputs; no
    output may be left out. `max_version` is the newest version that LiteRT registers.
    `algorithms`: the candidate implementations of `lower` by name, the default first (see
    common/algorithms.py); None, or a single one: there is no choice.
    `built_in`: positions of constants whose values `lower` builds into the function: another value
    for them would have no effect, so they are not parameters of a model.
    """

    name: str
    options_type: type[OptionsT]
    max_version: int
    why_not: WhyNot[OptionsT]
    lower: Lower[OptionsT]
    states: States[OptionsT] | None = None
    arity: int = 1
    results: int = 1
    is_identity_in_float_view: bool = False
    host_reason: str | None = None
    algorithms: Algorithms[OptionsT] | None = None
    built_in: tuple[int, ...] = ()

    def reason(self, op: Op[Any]) -> str | None:
        """Why this operator, as it is in the file, cannot be lowered; None if it can."""
        if op.context.op_version > self.max_version:
            return (
                f"version {op.context.op_version} is newer than the newest supported version, "
                f"{self.max_version}"
            )
        if not isinstance(op.options, self.options_type):
            return f"options are {type(op.options).__name__}, not {self.options_type.__name__}"
        missing = self._missing(op.inputs, op.outputs)
        if missing is not None:
            return missing
        present = [spec for spec in (*op.inputs, *op.outputs) if spec is not None]
        strings = next((spec for spec in present if spec.dtype.hasobject), None)
        if strings is not None:
            return f"{strings.name!r} holds strings, which XLA does not support"
        dynamic = next((spec for spec in present if spec.is_dynamic), None)
        if dynamic is not None:
            return f"the shape of {dynamic.name!r} depends on data; XLA needs static shapes"
        handles = (f"{s.name!r} is a resource handle" for s in op.outputs if s.dtype in HANDLES)
        return self.why_not(op) or next(handles, None)

    def _missing(self, inputs: Specs, outputs: Specs) -> str | None:
        if len(inputs) < self.arity or any(spec is None for spec in inputs[: self.arity]):
            return f"needs {self.arity} inputs"
        if len(outputs) < self.results:
            return f"has {len(outputs)} outputs, not {self.results}"
        if any(spec is None for spec in outputs):
            return "an output is left out"
        variable = next((spec for spec in outputs if spec.is_variable), None)
        if variable is None:
            return None
        return f"its output {variable.name!r} is a variable, which the host keeps"


def table(*rules: OpRule) -> dict[str, OpRule]:
    rows = {rule.name: rule for rule in rules}
    if len(rows) != len(rules):
        raise ValueError(f"duplicate rules among {sorted(rule.name for rule in rules)}")
    return rows


def rule(
    name: str,
    max_version: int,
    why_not: WhyNot[OptionsT],
    lower: Lower[OptionsT],
    states: States[OptionsT] | None = None,
    **traits: Any,
) -> OpRule[OptionsT]:
    """The rule of an operator of this package; its record names the options."""
    options: Any = record_of(name).options
    return OpRule(name, options, max_version, why_not, lower, states, **traits)


def host_only(name: str, max_version: int, reason: str) -> OpRule[Options]:
    """The rule of an operator that is never lowered; the report prints the reason."""

    def why_not(_op: Op[Options]) -> str:
        return reason

    def lower(_op: Op[Options]) -> Function:
        raise ValueError(f"{name} is never lowered: {reason}")

    return rule(name, max_version, why_not, lower, arity=0, results=0, host_reason=reason)


def optional(inputs: Specs, position: int) -> TensorSpec | None:
    """An optional input, or None if the file leaves it out (index -1, or a shorter list)."""
    return inputs[position] if position < len(inputs) else None


def variable_inputs(op: Op[Options]) -> tuple[int, ...]:
    """The `states` of a recurrent operator: its variable tensors, in input order."""
    return tuple(i for i, spec in enumerate(op.inputs) if spec is not None and spec.is_variable)


def why_not_dtype(spec: TensorSpec, *allowed: frozenset[np.dtype] | type) -> str | None:
    """A reason if the dtype is outside these sets and scalar types."""
    sets = [a if isinstance(a, frozenset) else frozenset([np.dtype(a)]) for a in allowed]
    if spec.is_quantized:
        return f"{spec.name!r} is quantized {spec.dtype}, which the operator has no lowering for"
    if any(spec.dtype in s for s in sets):
        return None
    names = ", ".join(sorted(str(d) for s in sets for d in s))
    return f"{spec.name!r} is {spec.dtype}, not one of {names}"


def why_not_result(spec: TensorSpec, dtype: np.dtype | type) -> str | None:
    """A reason if the file declares another dtype than the operator computes."""
    if spec.dtype == dtype:
        return None
    return f"{spec.name!r} is {spec.dtype}, but the operator yields {np.dtype(dtype)}"


def why_not_const(*specs: TensorSpec | None) -> str | None:
    """A reason if one of these inputs, which XLA needs as constants, is computed at run time."""
    late = next((s for s in specs if s is not None and s.const is None), None)
    return None if late is None else f"{late.name!r} is computed at run time; XLA needs it constant"


def first_reason(*reasons: str | None) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)
