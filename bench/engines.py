"""The engines that bench/compare.py compares, each as a function from inputs to outputs.

Times cover what a caller waits for: setting inputs, the run, and outputs as host arrays. Engines
whose names end in `on_device` take and return arrays on the device. Every engine reports where it
computes, so that one that fell back to a CPU is not mistaken for a GPU's.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from agreement import QUANTIZED, Arrays, file_kind
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import AbsentError, last_line

import jaxdelegate as jd

Run = Callable[[Arrays], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Engine:
    """A model that is ready to run.

    Attributes:
        run: inputs to outputs.
        device: where it computes: "cpu", "gpu" or "tpu", then details.
    """

    run: Run
    device: str = "cpu"

    def __call__(self, arrays: Arrays) -> Sequence[Any]:
        return self.run(arrays)

    @property
    def platform(self) -> str:
        return self.device.split()[0]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of all engines.

    Attributes:
        graph: the .tflite.
        threads: how many each may take.
        options: of JaxDelegate.
        short: the dtype that engines may compute in; None: float32.
        onnx: the same model for ONNX Runtime.
        float_graph: the same network in float32, for a quantized one.
    """

    graph: Path
    threads: int = 1
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    short: np.dtype | None = None
    onnx: Path | None = None
    float_graph: Path | None = None

    @property
    def platform(self) -> str:
        """The delegate's platform: "cpu", "gpu" or "tpu"."""
        found: str = jax.devices(self.options.get("platform"))[0].platform
        return found

    @property
    def on_gpu(self) -> bool:
        return self.platform == "gpu"


def xnnpack(settings: Settings, arrays: Arrays) -> Engine:
    interpreter = StockInterpreter(str(settings.graph), num_threads=settings.threads)
    return Engine(_ready(interpreter, arrays))


def own_interpreter(settings: Settings, arrays: Arrays) -> Engine:
    delegate = jd.JaxDelegate(**settings.options)
    interpreter = jd.Interpreter(settings.graph, experimental_delegates=[delegate])
    if delegate.device.platform == "cpu":
        return Engine(_ready(interpreter, arrays), _place(delegate))
    return Engine(_lending(interpreter, arrays), _place(delegate))


def in_quant_mode(mode: str) -> Callable[[Settings, Arrays], Engine]:
    """Our interpreter in one of the modes between which quant_mode="auto" chooses."""

    def make(settings: Settings, arrays: Arrays) -> Engine:
        if file_kind(settings.graph.read_bytes()) not in QUANTIZED:
            raise AbsentError("the model is not quantized")
        options = {**settings.options, "quant_mode": mode}
        return own_interpreter(dataclasses.replace(settings, options=options), arrays)

    return make


def in_stock_interpreter(settings: Settings, arrays: Arrays) -> Engine:
    delegate = jd.JaxDelegate(**settings.options)
    interpreter = StockInterpreter(
        str(settings.graph), experimental_delegates=[delegate], num_threads=settings.threads
    )
    return Engine(_ready(interpreter, arrays), _place(delegate))


def on_device(settings: Settings, arrays: Arrays) -> Engine:
    """Our interpreter between arrays on the device; the call waits for the results."""
    delegate = jd.JaxDelegate(**settings.options)
    interpreter = jd.Interpreter(settings.graph, experimental_delegates=[delegate])
    _prepare(interpreter, arrays)
    place = _place(delegate)
    inputs = [d["index"] for d in interpreter.get_input_details()]
    outputs = [d["index"] for d in interpreter.get_output_details()]
    resident = jax.device_put(list(arrays), delegate.device)

    def run(_given: Arrays) -> list[jax.Array]:
        for index, array in zip(inputs, resident, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return jax.block_until_ready([interpreter.get_device_tensor(i) for i in outputs])

    return Engine(run, place)


def function(settings: Settings, arrays: Arrays) -> Engine:
    if settings.short is not None:
        raise AbsentError("jaxdelegate.load computes in float32")
    if settings.options.get("quant_mode") == "integer":
        raise AbsentError("jaxdelegate.load computes in the float view")
    model = jd.load(settings.graph)
    (device,) = model(*arrays)[0].devices()
    return Engine(
        lambda given: [np.asarray(y) for y in model(*given)],
        f"{device.platform} {device.device_kind}",
    )


def float_twin(settings: Settings, arrays: Arrays) -> Engine:
    """Our interpreter on the float32 network that a quantized file was made from; only timed."""
    if settings.float_graph is None:
        raise AbsentError("no --float_graph given")
    delegate = jd.JaxDelegate(platform=settings.options.get("platform"))
    interpreter = jd.Interpreter(settings.float_graph, experimental_delegates=[delegate])
    details = interpreter.get_input_details()
    own = [a.astype(d["dtype"]) for a, d in zip(arrays, details, strict=True)]
    run = _ready(interpreter, own)
    return Engine(lambda _given: run(own), _place(delegate))


def openvino(settings: Settings, arrays: Arrays) -> Engine:
    library = module("openvino")
    dtype = "bf16" if settings.short is not None else "f32"
    hints = {"INFERENCE_NUM_THREADS": settings.threads, "INFERENCE_PRECISION_HINT": dtype}
    try:
        model = library.Core().read_model(settings.graph)
        model.reshape({port: list(a.shape) for port, a in zip(model.inputs, arrays, strict=True)})
        compiled = library.Core().compile_model(model, "CPU", hints)
    except RuntimeError as error:
        raise AbsentError(last_line(error)) from error
    request = compiled.create_infer_request()
    return Engine(lambda given: [np.array(y) for y in request.infer(list(given)).values()])


def litert_gpu(settings: Settings, arrays: Arrays) -> Engine:
    """LiteRT's own accelerator, over WebGPU; it computes in float16 where that is allowed.

    Its Python interface copies to and from its buffers, so inputs and outputs are always host
    arrays.
    """
    if not settings.on_gpu:
        raise AbsentError("there is no GPU")
    options = module("ai_edge_litert.options").Options
    gpu_options = module("ai_edge_litert.gpu_options").GpuOptions
    accelerators = module("ai_edge_litert.hardware_accelerator").HardwareAccelerator
    return compiled_model(
        settings,
        arrays,
        options(
            hardware_accelerators=accelerators.GPU,
            gpu_options=gpu_options(enforce_f32=settings.short is None),
        ),
        device="gpu WebGPU",
    )


def litert_ynnpack(settings: Settings, arrays: Arrays) -> Engine:
    """LiteRT with YNNPACK, which its CPU options let take what it can before XNNPACK."""
    options = module("ai_edge_litert.options").Options
    cpu_options = module("ai_edge_litert.cpu_options").CpuOptions
    own = cpu_options(num_threads=settings.threads, enable_ynnpack=True)
    try:
        return compiled_model(settings, arrays, options(cpu_options=own))
    except AbsentError as error:  # as of ai-edge-litert 2.3.0, whose wheel was built without it
        raise AbsentError(f"LiteRT does not run it with YNNPACK: {error}") from error


def compiled_model(settings: Settings, arrays: Arrays, options: Any, device: str = "cpu") -> Engine:
    """The model by LiteRT's newer API; `options` say on which accelerator, `device` names it.

    Raises:
        AbsentError: it does not run there, or not all of it.
    """
    library = module("ai_edge_litert.compiled_model")
    shapes = StockInterpreter(str(settings.graph))
    _prepare(shapes, arrays)
    wanted = [(tuple(d["shape"]), d["dtype"]) for d in shapes.get_output_details()]
    try:
        model = library.CompiledModel.from_file(str(settings.graph), options=options)
        for i, array in enumerate(arrays):
            model.resize_input_tensor(i, array.shape, strict=False)
        if device != "cpu" and not model.is_fully_accelerated():
            raise AbsentError("LiteRT leaves operators on the CPU")
        sources, targets = model.create_input_buffers(0), model.create_output_buffers(0)
    except (RuntimeError, ValueError) as error:
        raise AbsentError(last_line(error)) from error

    def run(given: Arrays) -> list[np.ndarray]:
        for source, array in zip(sources, given, strict=True):
            source.write(array)
        model.run_by_index(0, sources, targets)
        return [
            np.reshape(target.read(int(np.prod(shape)), dtype), shape)
            for target, (shape, dtype) in zip(targets, wanted, strict=True)
        ]

    return Engine(run, device)


ENGINES: dict[str, Callable[[Settings, Arrays], Engine]] = {
    "litert_xnnpack": xnnpack,
    "jaxdelegate": own_interpreter,
    "jaxdelegate_integer": in_quant_mode("integer"),
    "jaxdelegate_float_view": in_quant_mode("float_view"),
    "jaxdelegate_in_stock": in_stock_interpreter,
    "jaxdelegate_function": function,
    "jaxdelegate_on_device": on_device,
    "jaxdelegate_float_twin": float_twin,
    "litert_ynnpack": litert_ynnpack,
    "litert_gpu": litert_gpu,
    "openvino": openvino,
}
UNJUDGED = frozenset(("jaxdelegate_float_twin",))  # another network's outputs
ON_GPU = frozenset(("jaxdelegate_on_device", "litert_gpu"))  # left out on a CPU unless requested
_CPU_PEERS = frozenset(
    ("litert_xnnpack", "litert_ynnpack", "openvino")
)  # whatever the delegate's platform


def assert_place(name: str, engine: Engine, platform: str) -> None:
    """Check that an engine computes on the requested device.

    Raises:
        AbsentError: it computes elsewhere, for example because it fell back to a CPU.
    """
    wanted = "cpu" if name in _CPU_PEERS else platform
    if engine.platform != wanted:
        raise AbsentError(f"computes on {engine.device}, not on the {wanted}")


def to_host(result: Any) -> np.ndarray:
    """An engine's output as a numpy array, wherever it is stored."""
    array: np.ndarray = np.asarray(result.float().cpu() if hasattr(result, "cpu") else result)
    return array


def _place(delegate: jd.JaxDelegate) -> str:
    """Where a delegate's programs run.

    Raises:
        AbsentError: some operators run on the host instead.
    """
    if delegate.device.platform != "cpu" and (left := delegate.report().left):
        raise AbsentError(f"{len(left)} operators stay on the host: {left[0].reason}")
    return f"{delegate.device.platform} {delegate.device.device_kind}"


def _prepare(interpreter: Any, arrays: Arrays) -> None:
    """Resize an interpreter, ours or LiteRT's, to the arrays' shapes, and allocate.

    Raises:
        AbsentError: it cannot, for example because a RESHAPE fixes the batch.
    """
    for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    try:
        interpreter.allocate_tensors()
    except RuntimeError as error:
        raise AbsentError(last_line(error)) from error


def _ready(interpreter: Any, arrays: Arrays) -> Run:
    """Set inputs, invoke and get outputs of an interpreter, ours or LiteRT's."""
    _prepare(interpreter, arrays)
    inputs = [d["index"] for d in interpreter.get_input_details()]
    outputs = [d["index"] for d in interpreter.get_output_details()]

    def run(given: Arrays) -> list[np.ndarray]:
        for index, array in zip(inputs, given, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(i) for i in outputs]

    return run


def _lending(interpreter: jd.Interpreter, arrays: Arrays) -> Run:
    """Ours as the tools run it: inputs go to the device without a copy on the host."""
    _prepare(interpreter, arrays)
    inputs = [d["index"] for d in interpreter.get_input_details()]
    return lambda given: interpreter._start(dict(zip(inputs, given, strict=True)))()


def module(name: str) -> Any:
    """Import an optional library.

    Raises:
        AbsentError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise AbsentError(f"{name} is not installed") from error
