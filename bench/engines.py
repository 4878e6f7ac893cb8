"""The engines that bench/compare.py puts side by side, each as a function from inputs to outputs.

Times hold what a caller waits for: setting inputs, the run, and outputs as host arrays. Only
`jaxdelegate_on_device` begins and ends with arrays on the device.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from agreement import Arrays
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import AbsentError, last_line

import jaxdelegate as jd

Run = Callable[[Arrays], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the engines are told.

    Attributes:
        graph: the .tflite.
        threads: how many each may take.
        options: of JaxDelegate.
        short: the dtype that engines may compute in; None: float32.
        onnx: the same model for ONNX Runtime.
        twin: the same network in float32, for a quantized one.
    """

    graph: Path
    threads: int = 1
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    short: np.dtype | None = None
    onnx: Path | None = None
    twin: Path | None = None

    @property
    def on_gpu(self) -> bool:
        return jax.devices(self.options.get("platform"))[0].platform == "gpu"


def xnnpack(settings: Settings, arrays: Arrays) -> Run:
    return _ready(StockInterpreter(str(settings.graph), num_threads=settings.threads), arrays)


def own_interpreter(settings: Settings, arrays: Arrays) -> Run:
    delegate = jd.JaxDelegate(**settings.options)
    return _ready(jd.Interpreter(settings.graph, experimental_delegates=[delegate]), arrays)


def in_stock_interpreter(settings: Settings, arrays: Arrays) -> Run:
    interpreter = StockInterpreter(
        str(settings.graph),
        experimental_delegates=[jd.JaxDelegate(**settings.options)],
        num_threads=settings.threads,
    )
    return _ready(interpreter, arrays)


def on_device(settings: Settings, arrays: Arrays) -> Run:
    """The model's one program, on arrays that lie on the device; results stay there."""
    delegate = jd.JaxDelegate(**settings.options)
    interpreter = jd.Interpreter(settings.graph, experimental_delegates=[delegate])
    _prepare(interpreter, arrays)
    partitions = delegate.partitions()
    if len(partitions) != 1:
        raise AbsentError(f"the model runs as {len(partitions)} programs")
    program = partitions[0].program
    own = [d["index"] for d in interpreter.get_input_details()]
    wanted = [d["index"] for d in interpreter.get_output_details()]
    if program.states or not {*program.inputs} <= {*own} or not {*wanted} <= {*program.outputs}:
        raise AbsentError("the program is not the whole model")
    given = dict(zip(own, jax.device_put(list(arrays), delegate.device), strict=True))
    values = [given[i] for i in program.inputs]
    places = [program.outputs.index(i) for i in wanted]

    def run(_given: Arrays) -> list[jax.Array]:
        results = jax.block_until_ready(program(values))
        return [results[place] for place in places]

    return run


def function(settings: Settings, arrays: Arrays) -> Run:
    if settings.short is not None:
        raise AbsentError("jaxdelegate.load computes in float32")
    if settings.options.get("quant_mode") == "integer":
        raise AbsentError("jaxdelegate.load computes in the float view")
    model = jd.load(settings.graph)
    model(*arrays)
    return lambda given: [np.asarray(y) for y in model(*given)]


def float_twin(settings: Settings, arrays: Arrays) -> Run:
    """Our interpreter on the float32 network that a quantized file was made of: for time only."""
    if settings.twin is None:
        raise AbsentError("no --float_graph given")
    delegate = jd.JaxDelegate(platform=settings.options.get("platform"))
    interpreter = jd.Interpreter(settings.twin, experimental_delegates=[delegate])
    details = interpreter.get_input_details()
    own = [a.astype(d["dtype"]) for a, d in zip(arrays, details, strict=True)]
    run = _ready(interpreter, own)
    return lambda _given: run(own)


def openvino(settings: Settings, arrays: Arrays) -> Run:
    library = _module("openvino")
    dtype = "bf16" if settings.short is not None else "f32"
    hints = {"INFERENCE_NUM_THREADS": settings.threads, "INFERENCE_PRECISION_HINT": dtype}
    try:
        model = library.Core().read_model(settings.graph)
        model.reshape({port: list(a.shape) for port, a in zip(model.inputs, arrays, strict=True)})
        compiled = library.Core().compile_model(model, "CPU", hints)
    except RuntimeError as error:
        raise AbsentError(last_line(error)) from error
    request = compiled.create_infer_request()
    return lambda given: [np.array(y) for y in request.infer(list(given)).values()]


def onnx_runtime(settings: Settings, arrays: Arrays) -> Run:
    library = _module("onnxruntime")
    if settings.onnx is None:
        raise AbsentError("no --onnx given")
    session_options = library.SessionOptions()
    session_options.intra_op_num_threads = settings.threads
    session_options.log_severity_level = 3
    providers = _providers(library, settings)
    try:
        session = library.InferenceSession(str(settings.onnx), session_options, providers)
        names = [i.name for i in session.get_inputs()]
        run = lambda given: session.run(None, dict(zip(names, given, strict=True)))  # noqa: E731
        run(arrays)
    except Exception as error:  # its classes derive from Exception only
        raise AbsentError(last_line(error)) from error
    return run


def _providers(library: Any, settings: Settings) -> list[Any]:
    """Where ONNX Runtime runs, best first."""
    there = library.get_available_providers()
    is_half = settings.short == np.float16
    tensorrt = ("TensorrtExecutionProvider", {"trt_fp16_enable": is_half})
    wanted = [tensorrt, ("CUDAExecutionProvider", {})] if settings.on_gpu else []
    return [p for p in wanted if p[0] in there] or ["CPUExecutionProvider"]


def litert_gpu(settings: Settings, arrays: Arrays) -> Run:
    """LiteRT's own accelerator, over WebGPU; it computes in float16 where that is allowed."""
    if not settings.on_gpu:
        raise AbsentError("there is no GPU")
    options = _module("ai_edge_litert.options").Options
    gpu_options = _module("ai_edge_litert.gpu_options").GpuOptions
    accelerators = _module("ai_edge_litert.hardware_accelerator").HardwareAccelerator
    return compiled_model(
        settings,
        arrays,
        options(
            hardware_accelerators=accelerators.GPU,
            gpu_options=gpu_options(enforce_f32=settings.short is None),
        ),
    )


def litert_ynnpack(settings: Settings, arrays: Arrays) -> Run:
    """LiteRT's CPU options have YNNPACK take what it can, ahead of XNNPACK."""
    options = _module("ai_edge_litert.options").Options
    cpu_options = _module("ai_edge_litert.cpu_options").CpuOptions
    own = cpu_options(num_threads=settings.threads, enable_ynnpack=True)
    try:
        return compiled_model(settings, arrays, options(cpu_options=own))
    except AbsentError as error:  # as of ai-edge-litert 2.3.0, whose wheel was built without it
        raise AbsentError(f"LiteRT does not run it with YNNPACK: {error}") from error


def compiled_model(settings: Settings, arrays: Arrays, options: Any) -> Run:
    """The model by LiteRT's newer API; `options` say on which accelerator."""
    library = _module("ai_edge_litert.compiled_model")
    shapes = StockInterpreter(str(settings.graph))
    _prepare(shapes, arrays)
    wanted = [(tuple(d["shape"]), d["dtype"]) for d in shapes.get_output_details()]
    try:
        model = library.CompiledModel.from_file(str(settings.graph), options=options)
        for i, array in enumerate(arrays):
            model.resize_input_tensor(i, array.shape, strict=False)
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

    return run


ENGINES: dict[str, Callable[[Settings, Arrays], Run]] = {
    "litert_xnnpack": xnnpack,
    "jaxdelegate": own_interpreter,
    "jaxdelegate_in_stock": in_stock_interpreter,
    "jaxdelegate_function": function,
    "jaxdelegate_on_device": on_device,
    "jaxdelegate_float_twin": float_twin,
    "litert_ynnpack": litert_ynnpack,
    "litert_gpu": litert_gpu,
    "openvino": openvino,
    "onnxruntime": onnx_runtime,
}
UNJUDGED = frozenset(("jaxdelegate_float_twin",))  # another network's outputs
ON_GPU = frozenset(("jaxdelegate_on_device", "litert_gpu"))  # left out on a CPU if not asked for


def to_host(result: Any) -> np.ndarray:
    """An engine's output as numpy's, from wherever it lies."""
    array: np.ndarray = np.asarray(result.float().cpu() if hasattr(result, "cpu") else result)
    return array


def _prepare(interpreter: Any, arrays: Arrays) -> None:
    """Resize either interpreter to the arrays' shapes, and allocate.

    Raises:
        AbsentError: it cannot, as where a RESHAPE fixes the batch.
    """
    for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    try:
        interpreter.allocate_tensors()
    except RuntimeError as error:
        raise AbsentError(last_line(error)) from error


def _ready(interpreter: Any, arrays: Arrays) -> Run:
    """Either interpreter: set, invoke, get."""
    _prepare(interpreter, arrays)
    inputs = [d["index"] for d in interpreter.get_input_details()]
    outputs = [d["index"] for d in interpreter.get_output_details()]

    def run(given: Arrays) -> list[np.ndarray]:
        for index, array in zip(inputs, given, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(i) for i in outputs]

    return run


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise AbsentError(f"{name} is not installed") from error
