"""An operator case: run the same inputs in the lowering, the reference and stock LiteRT."""

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib import version as jaxlib_version

from jaxdelegate.measuring.tolerance import Tolerance, assert_close
from jaxdelegate.op_lowering.options import NoOptions, Options, as_read, default_options, record_of
from jaxdelegate.op_lowering.rule import LoweringContext, Op, OpRule
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.passes.propagation import known_shapes, with_shape
from jaxdelegate.quant.params import Quantization
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.testing.running import invoked

# The compiler options of a case's lowering. A case shows what a lowering means, and optimizations
# are most of its time: the first two are those of JAX's setting jax_disable_most_optimizations, the
# third halves what is left, and the fourth leaves a program in one part, which saves a quarter.
# `pytest --optimized` does without it for a third of the cases.
COMPILER_OPTIONS: dict[str, bool | str] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": "1",
}
if jaxlib_version.__version_info__ >= (0, 11, 1):  # which always uses them
    del COMPILER_OPTIONS["xla_cpu_use_fusion_emitters"]

Call = tuple[Callable[..., Any], list[np.ndarray]]  # a function, and what to call it with


@dataclasses.dataclass(frozen=True, eq=False)
class Arg:
    """One input of a case: its value, and whether the file holds it."""

    value: np.ndarray
    is_const: bool = False
    is_variable: bool = False
    quantization: Quantization | None = None


def f32(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Arg:
    """A run-time float32 input, uniform and reproducible."""
    return of(np.float32, *shape, low=low, high=high, seed=seed)


def of(dtype: Any, *shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Arg:
    """A run-time input of any dtype; integers take [low, high], booleans both values."""
    rng = np.random.default_rng(zlib.crc32(f"{np.dtype(dtype)}{shape}{seed}".encode()))
    kind = np.dtype(dtype).kind
    array: Any
    if kind == "b":
        array = rng.integers(0, 2, shape)
    elif kind in "iu":
        least = int(max(low, np.iinfo(dtype).min))
        array = rng.integers(least, int(high), shape, endpoint=True)
    else:
        array = rng.uniform(low, high, shape)
        if kind == "c":
            array = array + 1j * rng.uniform(low, high, shape)
    return Arg(np.asarray(array, dtype))


def value(array: Any, dtype: Any = None) -> Arg:
    """A run-time input with the given value."""
    return Arg(np.asarray(array, dtype))


def const(array: Any, dtype: Any = None) -> Arg:
    """An input that the file holds: an array, or another case's Arg made constant."""
    array = array.value if isinstance(array, Arg) else np.asarray(array, dtype)
    return Arg(array, is_const=True)


def variable(*shape: int, dtype: Any = np.float32) -> Arg:
    """A variable tensor, zero at the first invoke."""
    return Arg(np.zeros(shape, dtype), is_variable=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One operator with options, inputs and the dtypes of its outputs.

    `outputs` gives the output dtypes; by default one output of the first input's dtype.
    `accumulated` is the K of the tolerance table; `tolerance` replaces the table's entry and needs
    `because`.
    """

    name: str
    label: str
    inputs: Sequence[Arg | None]
    options: Options | None = None
    outputs: Sequence[Any] | None = None
    version: int = 1
    accumulated: int = 1
    tolerance: Tolerance | None = None
    because: str | None = None
    litert: str | None = None  # why stock LiteRT cannot run it; None: it can
    output_quantization: Sequence[Quantization | None] | None = None  # one for each output
    intermediates: Sequence[Arg] = ()  # for their quantization; the values do not matter
    shapes: Sequence[Shape] | None = None  # the outputs', where only the file knows them

    def __str__(self) -> str:
        return f"{self.name}-{self.label}"

    @property
    def op_options(self) -> Options:
        """The options, or the operator's defaults."""
        return self.options if self.options is not None else default_options(self.name)

    def with_inputs(self, changes: Mapping[int, Arg | None]) -> "Case":
        """The case with other inputs at these positions."""
        inputs = [changes.get(i, a) for i, a in enumerate(self.inputs)]
        return dataclasses.replace(self, inputs=inputs)

    def input_specs(self) -> Specs:
        """The specs of the inputs; None: an absent one."""
        return tuple(None if a is None else _spec(f"in{i}", a) for i, a in enumerate(self.inputs))  # type: ignore[misc]

    def specs(self, shape: Shape | None = None) -> tuple[Specs, Specs]:
        """Input and output specs; output shapes by the reference's shape function, or as given."""
        inputs = self.input_specs()
        dtypes = self.outputs if self.outputs is not None else [_first_dtype(self.inputs)]
        scales = self.output_quantization or [None] * len(dtypes)
        shapes = self.shapes or [shape or ()] * len(dtypes)
        declared = tuple(
            TensorSpec(f"out{i}", *details)
            for i, details in enumerate(zip(shapes, map(np.dtype, dtypes), scales, strict=True))
        )
        if shape is not None:
            return inputs, declared
        known = known_shapes(KERNELS[self.name], self.op_options, inputs, declared)
        return inputs, tuple(map(with_shape, declared, known))

    def read_specs(self, shape: Shape | None = None) -> tuple[Specs, Specs]:
        """Like `specs`, without the scales that the operator's kernel ignores."""
        specs = self.specs() if shape is None else self.specs(shape)
        return as_read(record_of(self.name), *specs)

    def arrays(self) -> list[np.ndarray | None]:
        """The values of the inputs."""
        return [None if a is None else a.value for a in self.inputs]

    def intermediate_specs(self) -> Specs:
        """The specs of the operator's intermediate tensors."""
        return tuple(_spec(f"between{i}", a) for i, a in enumerate(self.intermediates))

    def run_reference(self) -> list[np.ndarray]:
        """Outputs, then new states, from the numpy kernel."""
        kernel = KERNELS[self.name]
        more = {"intermediates": self.intermediate_specs()} if kernel.takes_intermediates else {}
        return list(kernel.run(self.op_options, *self.read_specs(), *self.arrays(), **more))

    def run_lowered(self, rule: OpRule, context: LoweringContext | None = None) -> list[np.ndarray]:
        """Outputs, then new states, from the lowering, compiled with COMPILER_OPTIONS."""
        (results,) = run_together([self.lowered_call(rule, context)])
        return results

    def lowered_call(self, rule: OpRule, context: LoweringContext | None = None) -> Call:
        """The lowering as a function of the inputs that are no constants, and these inputs."""
        op = self.op(context)
        reason = rule.reason(op)
        assert reason is None, f"{self}: refused: {reason}"
        lowered = rule.lower(op)

        def call(*live_arrays: Any) -> tuple[Any, ...]:
            live = iter(live_arrays)
            arguments = [a and (a.value if a.is_const else next(live)) for a in self.inputs]
            try:
                return lowered(*arguments)
            except Exception as error:
                error.add_note(str(self))  # one of several in a program
                raise

        return call, self.live_arrays()

    def op(self, context: LoweringContext | None = None, shape: Shape | None = None) -> Op[Options]:
        """The operator as its rule sees it, by default in integer mode on a CPU.

        The output's shape is given where the reference knows none.
        """
        context = dataclasses.replace(
            context or LoweringContext(quant_mode="integer"),
            op_version=self.version,
            intermediates=self.intermediate_specs(),
        )
        return Op(context, self.op_options, *self.read_specs(shape))

    def reason(self, rule: OpRule, shape: Shape | None = None) -> str:
        """Why the rule refuses the case; empty if it accepts it. For the shape see `op`."""
        return rule.reason(self.op(shape=shape)) or ""

    def live_arrays(self) -> list[np.ndarray]:
        """The values of the inputs that are no constants, variable tensors among them."""
        return [a.value for a in self.inputs if a is not None and not a.is_const]

    def check(self, got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
        """Compare by the case's tolerance."""
        assert_close(
            got, want, accumulated=self.accumulated, tolerance=self.tolerance, because=self.because
        )

    def model(self) -> bytes:
        """The case as a .tflite file with one operator."""
        inputs, outputs = self.specs()
        builder = ModelBuilder(str(self))
        tensors = [
            None if a is None else _add(builder, spec, a)
            for spec, a in zip(inputs, self.inputs, strict=True)
        ]
        results, between = (
            [builder.tensor(s.shape, s.dtype, s.name, quantization=s.quantization) for s in specs]
            for specs in (outputs, self.intermediate_specs())
        )
        builder.operator(
            self.name,
            tensors,
            results,
            None if isinstance(self.options, NoOptions) else self.options,
            version=self.version,
            intermediates=between,
        )
        builder.outputs(*results)
        return builder.build()

    def feeds(self) -> list[np.ndarray]:
        """The run-time inputs, in the model's input order."""
        live = (a for a in self.inputs if a is not None and not a.is_const)
        return [a.value for a in live if not a.is_variable]

    def run_litert(self, *, optimized: bool = False) -> list[np.ndarray]:
        """Outputs of stock LiteRT: its reference kernels, or the optimized ones."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: PLC0415 (heavy)

        kind = "BUILTIN_WITHOUT_DEFAULT_DELEGATES" if optimized else "BUILTIN_REF"
        interpreter = Interpreter(
            model_content=self.model(), experimental_op_resolver_type=OpResolverType[kind]
        )
        interpreter.allocate_tensors()
        return invoked(interpreter, self.feeds())


def run_together(calls: Sequence[Call]) -> list[list[np.ndarray]]:
    """The results of each call, all from one program."""
    return compiled(calls)([arguments for _, arguments in calls])


def compiled(calls: Sequence[Call]) -> Callable[[Any], list[list[np.ndarray]]]:
    """One program of several calls, under 64-bit types as a delegate's; takes all their inputs."""
    import jax  # noqa: PLC0415 (this module is used by the reference's own tests, without jax)

    def program(inputs: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        return [call(*arguments) for (call, _), arguments in zip(calls, inputs, strict=True)]

    def run(inputs: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
        with jax.enable_x64(True):
            return [[np.asarray(y) for y in results] for results in executable(inputs)]

    with jax.enable_x64(True):
        lowered = jax.jit(program).lower([arguments for _, arguments in calls])
        executable = lowered.compile(COMPILER_OPTIONS)
    return run


def _first_dtype(inputs: Sequence[Arg | None]) -> np.dtype:
    return next(a.value.dtype for a in inputs if a is not None)


def _spec(name: str, a: Arg) -> TensorSpec:
    return TensorSpec(
        name,
        a.value.shape,
        a.value.dtype,
        a.quantization,
        is_variable=a.is_variable,
        const=a.value if a.is_const else None,
    )


def _add(builder: ModelBuilder, spec: TensorSpec, a: Arg) -> int:
    if a.is_const:
        return builder.constant(a.value, spec.name, quantization=a.quantization)
    if a.is_variable:
        return builder.tensor(
            spec.shape, spec.dtype, spec.name, is_variable=True, quantization=a.quantization
        )
    return builder.input(spec.shape, spec.dtype, spec.name, quantization=a.quantization)
