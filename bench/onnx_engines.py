"""ONNX Runtime for bench/compare.py: on the CPU, by CUDA and by TensorRT.

Engines that end in `on_device` bind inputs and outputs on the device and replay a CUDA graph; the
others take and return numpy arrays. `session.disable_cpu_ep_fallback` refuses models with an
operator that would stay on the CPU. Without `--onnx` PyTorch's exporter writes the file from the
network that bench/torch_network.py translates, which needs `torch`, `onnx` and `onnxscript`.
"""

import functools
import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from agreement import Arrays
from engines import Engine, Settings, module
from harness import AbsentError, last_line

from jaxdelegate.model.records import read_model

_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


def _engine(kind: str | None, *, stays: bool) -> Callable[[Settings, Arrays], Engine]:
    """A function that makes an engine.

    Args:
        kind: of the execution provider; None: CUDA on a GPU, otherwise the CPU.
        stays: arrays stay on the device.
    """

    def make(settings: Settings, arrays: Arrays) -> Engine:
        library = module("onnxruntime")
        own = kind or ("cuda" if settings.on_gpu else "cpu")
        if (own == "cpu") == settings.on_gpu:
            raise AbsentError("there is no GPU")
        if _PROVIDERS[own] not in library.get_available_providers():
            raise AbsentError(f"this onnxruntime has no {_PROVIDERS[own]}")
        try:
            session = _session(library, settings, arrays, own, stays)
            make_run = _bound if stays else _by_host
            run = make_run(library, session, arrays, "cpu" if own == "cpu" else "cuda")
            run(arrays)
        except AbsentError:
            raise
        except Exception as error:  # its classes derive from Exception only
            raise AbsentError(last_line(error)) from error
        used = session.get_providers()[0]
        return Engine(run, f"{'cpu' if used == _PROVIDERS['cpu'] else 'gpu'} {used}")

    return make


def _session(library: Any, settings: Settings, arrays: Arrays, kind: str, stays: bool) -> Any:
    options = library.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.log_severity_level = 3
    if kind != "cpu":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    provider = (_PROVIDERS[kind], _provider_options(kind, settings, stays))
    path = settings.onnx or exported(settings, arrays)
    return library.InferenceSession(str(path), options, [provider])


def _provider_options(kind: str, settings: Settings, stays: bool) -> dict[str, str]:
    """float32 without TensorFloat-32, a CUDA graph where addresses stay the same."""
    graph = str(int(stays))
    if kind == "cuda":
        return {"use_tf32": "0", "enable_cuda_graph": graph}
    if kind == "tensorrt":
        is_half = settings.short == np.float16
        return {"trt_fp16_enable": str(int(is_half)), "trt_cuda_graph_enable": graph}
    return {}


def _by_host(_library: Any, session: Any, _arrays: Arrays, _device: str) -> Callable[..., Any]:
    names = [i.name for i in session.get_inputs()]
    return lambda given: session.run(None, dict(zip(names, given, strict=True)))


def _bound(library: Any, session: Any, arrays: Arrays, device: str) -> Callable[..., Any]:
    """Bind inputs on the device, and outputs at fixed addresses."""
    binding, values = session.io_binding(), library.OrtValue
    for port, array in zip(session.get_inputs(), arrays, strict=True):
        binding.bind_ortvalue_input(port.name, values.ortvalue_from_numpy(array, device, 0))
    outputs = [
        values.ortvalue_from_shape_and_type(port.shape, np.float32, device, 0)
        for port in session.get_outputs()
    ]
    for port, value in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(port.name, value)

    def run(_given: Arrays) -> list[Any]:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return outputs

    return run


def exported(settings: Settings, arrays: Arrays) -> Path:
    """The .tflite as ONNX: float32 inputs and outputs, the short dtype between them.

    Raises:
        AbsentError: the exporter is not installed or cannot translate the model.
    """
    shapes = tuple((a.shape, a.dtype.str) for a in arrays)
    short = None if settings.short is None else settings.short.name
    return _exported(settings.graph, shapes, short)


@functools.cache
def _exported(graph: Path, shapes: tuple[Any, ...], short: str | None) -> Path:
    for name in ("torch", "onnx", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise AbsentError(f"no --onnx given, and {name}, to make one, is absent") from error
    torch, network_module = (importlib.import_module(n) for n in ("torch", "torch_network"))
    network = network_module.Network(read_model(graph)).eval()
    wrapped = network_module.Casting(network, getattr(torch, short or "float32"))
    inputs = tuple(torch.zeros(shape, dtype=_torch_dtype(torch, d)) for shape, d in shapes)
    path = Path(tempfile.mkdtemp(prefix="onnx_")) / f"{graph.stem}.onnx"
    try:
        torch.onnx.export(wrapped, inputs, path, dynamo=True, verbose=False)
    except Exception as error:  # exporters raise any exception
        raise AbsentError(f"no ONNX file of it: {last_line(error)}") from error
    return path


def _torch_dtype(torch: Any, dtype: str) -> Any:
    return torch.from_numpy(np.zeros(0, dtype)).dtype


ONNX_ENGINES: dict[str, Callable[[Settings, Arrays], Engine]] = {
    "onnxruntime": _engine(None, stays=False),
    "onnxruntime_on_device": _engine(None, stays=True),
    "onnxruntime_tensorrt": _engine("tensorrt", stays=False),
    "onnxruntime_tensorrt_on_device": _engine("tensorrt", stays=True),
}
