"""Programs for an absent device, compiled as JaxDelegate compiles them.

XLA compiles for a GPU or a TPU from a description of it. It needs neither the device nor its
driver, only jax's plugin (`pip install "jax[cuda12]" libtpu`). Nothing runs, so there are no times,
and XLA makes none of its choices by timing.
"""

import ctypes.util
import dataclasses
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from absl import flags
from harness import AbsentError, append, last_line
from jax.experimental import topologies
from roofline import batched_specs, fused

from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.target import Target
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.device_weights import DeviceWeights, ModelWeights
from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.function import context
from jaxdelegate.function import weights as function_weights
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.model.records import read_model
from jaxdelegate.options import DelegateOptions
from jaxdelegate.pjrt import client
from jaxdelegate.program import Executable, Partition, Program
from jaxdelegate.xla.options import platform_of
from jaxdelegate.xla.over_mesh import OverMesh
from tests.support.decoders import INT4, INT8, gated_layers, quantized_decoder

FLAGS = flags.FLAGS

# One chip of a host that has four, the fewest that libtpu describes.
_TPU_TOPOLOGY, _CHIPS = "v5e:2x2", (2, 2, 1)
# The first one that XLA wrote; it writes the second only if there are CUDA graphs.
_THUNKS = ("*.thunk_sequence_after_thunk_passes.txt", "*.thunk_sequence.txt")
SHIPPED = Path(__file__).parents[1] / "examples/sample_tasks/networks"
_BUILT = {  # networks that need no file
    "mobilenet_v1": mobilenet_v1,
    "decoder_layers": lambda: gated_layers(1, INT8, layers=2, width=1024, hidden=3072),
    "int4_decoder_layers": lambda: gated_layers(1, INT4, 32, layers=2, width=1024, hidden=3072),
    "int4_decoder": lambda: quantized_decoder(1, vocabulary=16384, width=1024, hidden=3072),
}
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "CONV_3D", "CONV_3D_TRANSPOSE")


@dataclasses.dataclass(frozen=True)
class Case:
    """What to compile; `batch` replaces a first dimension of 1, the rest are delegate options."""

    graph: Path
    batch: int
    compute_dtype: str
    quant_mode: str

    @property
    def head(self) -> dict[str, Any]:
        """The fields that identify its line of results."""
        return {**dataclasses.asdict(self), "graph": self.graph.name}


def define_flags(dtype: str) -> None:
    """Define the flags of both scripts; `dtype` is the default of --compute_dtype."""
    flags.DEFINE_list(
        "graph", [], f".tflite files, or names of shipped ones, or {', '.join(_BUILT)}."
    )
    flags.DEFINE_list("batch", ["1"], "Batches, in place of a first dimension of 1.")
    flags.DEFINE_list("compute_dtype", [dtype], "As JaxDelegate's option.")
    flags.DEFINE_list("quant_mode", ["float_view"], "As JaxDelegate's option.")
    flags.DEFINE_string("again", None, "Results, whose cases are compiled in place of --graph.")
    flags.DEFINE_string("models", None, "The folder of the models of --again.")
    flags.DEFINE_string("hlo", None, "A folder for the optimized programs' texts.")
    flags.DEFINE_string("out", None, "A file to append JSON lines to.")


def run(bench: str, device: jax.Device, measure: Callable[[Case], dict[str, Any]]) -> None:
    """Write a line of results for each case of the flags, or the reason why it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        there = f"{device.device_kind}, which was not there"
        for case in _cases(Path(folder), there):
            try:
                found = measure(case)
            except AbsentError as error:
                found = {"absent": str(error)}
            append({"bench": bench, **case.head, "compiled_for": there, **found}, FLAGS.out)


def _cases(folder: Path, there: str) -> Iterator[Case]:
    """The cases that the flags request; models built in memory are written to `folder`."""
    if FLAGS.again:
        yield from again(Path(FLAGS.again), Path(FLAGS.models or folder), folder, there)
        return
    for name in FLAGS.graph:
        graph = _graph(Path(name), folder)
        for batch in map(int, FLAGS.batch):
            for dtype in FLAGS.compute_dtype:
                for mode in FLAGS.quant_mode:
                    yield Case(graph, batch, dtype, mode)


def again(results: Path, models: Path, folder: Path, there: str) -> Iterator[Case]:
    """The cases of a device's earlier results whose models are in `models` or built in memory."""
    for line in results.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        graph = _graph(models / record["graph"], folder)
        if graph.exists() and record["compiled_for"] == there:
            yield Case(graph, record["batch"], record["compute_dtype"], record["quant_mode"])


def _graph(name: Path, folder: Path) -> Path:
    """A file, or the name of a network that the package ships or that can be built in memory."""
    if (SHIPPED / name.name).exists():
        return SHIPPED / name.name
    build = _BUILT.get(name.name)
    if build is None:
        return name
    path = folder / name.name
    path.write_bytes(build())
    return path


def keep_text(case: Case, text: str) -> None:
    """Write a program's text to the folder of --hlo."""
    if FLAGS.hlo:
        name = f"{case.graph.stem}_{case.batch}_{case.compute_dtype}_{case.quant_mode}.txt"
        Path(FLAGS.hlo).mkdir(parents=True, exist_ok=True)
        (Path(FLAGS.hlo) / name).write_text(text, encoding="utf-8")


def gpu(target: Path, dumps: Path) -> jax.Device:
    """A GPU to compile for.

    Args:
        target: a text proto of XLA's GpuTargetConfigProto.
        dumps: a folder for what XLA writes of each program.

    Raises:
        AbsentError: jax's CUDA plugin is not installed.
    """
    flags = f"--xla_gpu_autotune_level=0 --xla_dump_to={dumps}"  # read once, by the plugin
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    if ctypes.util.find_library("cuda") is None:  # of the driver; the plugin would call it
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    text = target.read_text(encoding="utf-8")
    return _described("jax's CUDA plugin", "", "cuda", target_config=text, topology="1x1x1")


def taken_thunks(dumps: Path) -> str:
    """Take XLA's dump of the last program's thunks out of the folder of `gpu`.

    Raises:
        AbsentError: XLA has written none.
    """
    found = next((files for pattern in _THUNKS if (files := sorted(dumps.glob(pattern)))), [])
    if not found:
        raise AbsentError("XLA has written no thunks")
    text = found[-1].read_text(encoding="utf-8")
    shutil.rmtree(dumps)
    dumps.mkdir()
    return text


def tpu() -> jax.Device:
    """A chip of a TPU v5e to compile for.

    Raises:
        AbsentError: libtpu is not installed.
    """
    return _described("libtpu", _TPU_TOPOLOGY, "tpu", chips_per_host_bounds=_CHIPS)


def _described(plugin: str, name: str, platform: str, **details: Any) -> jax.Device:
    # Keeps the plugin from looking for a device.
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    try:
        topology = topologies.get_topology_desc(name, platform, **details)
    except (RuntimeError, NotImplementedError) as error:
        raise AbsentError(f"{plugin}: {last_line(error)}") from error
    device: jax.Device = topology.devices[0]
    return device


class _Weight(jax.ShapeDtypeStruct):
    def is_deleted(self) -> bool:
        return False


class Shapes(ModelWeights):
    """Weights of an absent device: shapes and dtypes only."""

    def get(self, _weight: Any, _const: Any, value: Callable[[], Any]) -> Any:
        array = value()
        return _Weight(array.shape, array.dtype)  # type: ignore[no-untyped-call]


class Described(Target):
    """A device of a topology."""

    def __init__(self, device: jax.Device) -> None:
        self.can_do_without_jax = False
        self.device = device
        self.platform = platform_of(device.platform)


class AbsentCompiler(Compiler):
    """Compiles programs that can be inspected but not run."""

    def newly_compiled(
        self,
        partition: Partition,
        _weights: ModelWeights,
        name: str,
        over: OverMesh | None = None,
    ) -> Program:
        weights = Shapes(client.of_jax(self.device))
        return super().newly_compiled(partition, weights, name, over)


class _AbsentDelegate(JaxDelegate):
    def __init__(self, device: jax.Device, options: DelegateOptions) -> None:
        self._absent = device
        super().__init__(options)

    def make_compiler(self, options: DelegateOptions) -> Compiler:
        return AbsentCompiler(options, Described(self._absent))


def compiled(case: Case, device: jax.Device) -> Executable:
    """A whole model as one program.

    Args:
        case: which, and how.
        device: of `gpu` or `tpu`.

    Raises:
        AbsentError: the shapes do not allow the batch, or an operator stays on the host.
    """
    options = DelegateOptions(
        compute_dtype=case.compute_dtype,  # type: ignore[arg-type]
        quant_mode=case.quant_mode,  # type: ignore[arg-type]
        rebatch=True,
        require_full_delegation=True,
    )
    delegate = _AbsentDelegate(device, options)
    try:
        interpreter = Interpreter(str(case.graph), experimental_delegates=[delegate])
        for detail in interpreter.get_input_details():
            if tuple(detail["shape"][:1]) == (1,):
                shape = (case.batch, *detail["shape"][1:])
                interpreter.resize_tensor_input(detail["index"], shape)
        interpreter.allocate_tensors()
    except JaxDelegateError as error:
        raise AbsentError(str(error).partition("\n")[0]) from error  # XLA appends traces
    (partition,) = delegate.partitions()
    return partition.program.executable


def program_of(model: Any, spec: Any, device: jax.Device, options: DelegateOptions) -> Program:
    """A program of a bundle's models, as an engine on the device compiles it.

    Args:
        model: a `DeviceModel`, opened for a CPU.
        spec: what the program does.
        device: of `gpu` or `tpu`.
        options: of the engine.
    """

    def compiler(options: DelegateOptions, _target: Any = None, **more: Any) -> AbsentCompiler:
        return AbsentCompiler(options, Described(device), **more)

    model._view = dataclasses.replace(model._view, prepared=options)
    with (
        mock.patch.object(context, "Compiler", compiler),
        mock.patch.object(function_weights, "ModelWeights", Shapes),
    ):
        computation = model._new_computation(DeviceWeights(client.of_jax(device)))
        program: Program = computation.program(spec)
    return program


def weight_bytes(program: Program) -> int:
    """The bytes of a program's weights as the device has them."""
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in program.weights)


def megabytes(executable: Executable) -> dict[str, float] | None:
    """What a program takes on the device; None where the compiler does not report it."""
    stats = executable.memory_analysis()
    return stats and {
        "arguments": stats.argument_size_in_bytes / 1e6,
        "outputs": stats.output_size_in_bytes / 1e6,
        "scratch": stats.temp_size_in_bytes / 1e6,
    }


def accessed(executable: Any) -> float | None:
    """The megabytes that the compiler's cost analysis reports; None if it reports none."""
    costs = executable.compiled.cost_analysis() or {}
    return costs["bytes accessed"] / 1e6 if "bytes accessed" in costs else None


def convolutions(case: Case) -> int:
    """How many convolutions the model has."""
    operators = read_model(case.graph).subgraphs[0].operators
    return sum(operator.name in _CONVOLUTIONS for operator in operators)


def least(case: Case) -> dict[str, float | None]:
    """Arithmetic and traffic under ideal fusion; None where an operator's cost is not known."""
    model = read_model(case.graph)
    subgraph = model.subgraphs[0]
    short = np.dtype(np.float16) if case.compute_dtype in ("float16", "bfloat16") else None
    try:
        groups = fused(subgraph, batched_specs(subgraph, case.batch, model.subgraphs), short)
    except (AbsentError, JaxDelegateError):
        return {"gflop": None, "least_mb": None}
    flops, moved = sum(g.flops for g in groups), sum(g.bytes for g in groups)
    return {"gflop": flops / 1e9, "least_mb": moved / 1e6}
