"""check_precision: compares a model in float16 or bfloat16 with itself in float32."""

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np

from jaxdelegate.compile import precision_policy
from jaxdelegate.delegate.delegate_kernel import JaxKernel, input_values, partition_specs
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.function.model import CallableModel
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.lowering import error_probe
from jaxdelegate.lowering.error_probe import ERROR_BOUND, ProbeResult
from jaxdelegate.lowering.mixed_precision import unfit_constants
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.model.source import interpreter_arguments
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.options import DelegateOptions
from jaxdelegate.program import Partition
from jaxdelegate.report.precision import PrecisionReport
from jaxdelegate.simple_delegate import DelegateContext, DelegateParams
from jaxdelegate.text import plural
from jaxdelegate.waiting import waiting

Source = str | PathLike[str] | bytes
ReducedDtype = Literal["float16", "bfloat16"]
_REDUCED: dict[str, ReducedDtype] = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "auto": "float16",
}


def check_precision(
    model: Source | CallableModel,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    compute_dtype: str = "float16",
    *,
    error_bound: float = ERROR_BOUND,
    options: Mapping[str, Any] | DelegateOptions | None = None,
) -> PrecisionReport:
    """Run a model in reduced precision and in float32, and find the operators that go wrong.

    Lowering, storage and products are those of a GPU on every device, so the results are those of a
    GPU except for the order of sums.

    Args:
        model: a path, the file's content, or the result of `jaxdelegate.load`.
        inputs: arrays in the order of the model's inputs, or by name; None: seeded random ones.
        compute_dtype: "float16" or "bfloat16"; "auto" means float16, as on a GPU.
        error_bound: the largest allowed error relative to the largest value of the tensor.
        options: other options of the delegate, such as `quant_mode`.

    Raises:
        OptionError: another dtype, or an error bound that is not positive.
        ModelError: the file cannot be read.
        TensorError: the inputs do not match the model's.
    """
    source: Source = model.source if isinstance(model, CallableModel) else model
    dtype = _REDUCED.get(compute_dtype)
    if dtype is None:
        raise OptionError(
            f"compute_dtype: expected 'float16', 'bfloat16' or 'auto', got {compute_dtype!r}"
        )
    if not error_bound > 0:
        raise OptionError(f"error_bound: expected a positive number, got {error_bound!r}")
    delegate = _CheckingDelegate(
        DelegateOptions.of(options), precision_policy.emulated_policy(dtype), error_bound
    )
    interpreter = Interpreter(**interpreter_arguments(source), experimental_delegates=[delegate])
    _run(interpreter, _arrays(read_model(source), inputs))
    return _report(dtype, error_bound, delegate)


def _report(
    dtype: ReducedDtype, error_bound: float, delegate: "_CheckingDelegate"
) -> PrecisionReport:
    rows = [row for v in delegate.probe_results for row in v.operators]
    return PrecisionReport(
        compute_dtype=dtype,
        error_bound=error_bound,
        operators=tuple(sorted(rows, key=lambda row: row.index)),
        float32_operators=tuple(
            sorted({i for v in delegate.probe_results for i in v.float32_operators})
        ),
        constants=tuple(delegate.constants),
    )


def _arrays(graph: Model, inputs: Sequence[Any] | Mapping[str, Any] | None) -> list[Any]:
    main = graph.subgraphs[0]
    if inputs is None:
        return list(error_probe.seeded_values([main.tensors[i].spec() for i in main.inputs]))
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(main.inputs):
            raise TensorError(f"the model has {len(main.inputs)} inputs, got {len(inputs)}")
        return list(inputs)
    known = [s.inputs for s in graph.signatures if s.subgraph == 0]
    known.append({main.tensors[i].name: i for i in main.inputs})
    names = next((names for names in known if set(names) == set(inputs)), None)
    if names is None:
        raise TensorError(f"inputs {sorted(inputs)} are not the model's: {sorted(known[0])}")
    by_index = {index: inputs[name] for name, index in names.items()}
    return [by_index[i] for i in main.inputs]


def _run(interpreter: Interpreter, arrays: Sequence[Any]) -> None:
    details = interpreter.get_input_details()
    for detail, array in zip(details, arrays, strict=True):
        if tuple(detail["shape"]) != np.shape(array):
            interpreter.resize_tensor_input(detail["index"], np.shape(array))
    interpreter.allocate_tensors()
    for detail, array in zip(details, arrays, strict=True):
        interpreter.set_tensor(detail["index"], np.asarray(array))
    interpreter.invoke()


class _CheckingDelegate(JaxDelegate):
    """Computes in float32, and collects the errors of each partition under a policy."""

    name = "precision check"

    def __init__(
        self, options: DelegateOptions, policy: PrecisionPolicy, error_bound: float
    ) -> None:
        # The cost of transfers is not that of the GPU: check every partition.
        super().__init__(dataclasses.replace(options, compute_dtype="float32", min_gain=0))
        self.compiler.context = self.compiler.context.on_gpu(PrecisionPolicy())
        self.policy = policy
        self.error_bound = error_bound
        self.probe_results: list[ProbeResult] = []
        self.constants: list[str] = []

    def create_kernel(self) -> "_CheckingKernel":
        return _CheckingKernel(self)


class _CheckingKernel(JaxKernel):
    def __init__(self, delegate: _CheckingDelegate) -> None:
        super().__init__(delegate.compiler)
        self._checking = delegate
        self._lower: error_probe.Lower | None = None

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        super().prepare(context, node)
        specs = partition_specs(context, node)
        outputs = [i for i in node.outputs if specs[i].const is None]
        partition = Partition(node, specs, outputs)
        self._lower = self._checking.compiler.compilation.lowering_of(partition)
        operators = [n.operator for n in node.nodes]
        for index, reason in unfit_constants(self._checking.policy, operators, specs).items():
            self._checking.constants.append(f"{specs[index].name!r} stays float32: {reason}")

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:
        if self.compiled is None or self._lower is None:
            raise RuntimeError("eval before prepare")
        delegate = self._checking
        values = input_values(self.compiled.program, context)
        count = plural(len(node.nodes), "operator")
        with waiting(f"computing {count} in float32 and in reduced precision, each compiled once"):
            result = error_probe.probe(
                self._lower, delegate.policy, values, delegate.device, delegate.error_bound
            )
        delegate.probe_results.append(result)
        super().eval(context, node)
