"""PyTorch for bench/compare.py, as its users run a network on a GPU.

The network is the .tflite itself (bench/torch_network.py), in the short dtype where precision loss
is allowed: eager, by torch.compile, by torch.compile with CUDA graphs, and with its longest search
for kernels (CUDA graphs as well). Those that end in `on_device` take and return arrays on the
device. float32 means float32: TensorFloat-32 is off.
"""

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agreement import Arrays
from engines import Engine, Settings, module
from harness import AbsentError, last_line

from jaxdelegate.model.records import read_model

_WAYS: dict[str, dict[str, Any] | None] = {
    "pytorch": None,  # not compiled
    "pytorch_compile": {},
    "pytorch_cuda_graphs": {"mode": "reduce-overhead"},
    "pytorch_max_autotune": {"mode": "max-autotune"},
}


def _engine(way: str, *, stays: bool) -> Callable[[Settings, Arrays], Engine]:
    """A function that makes an engine; with `stays`, arrays stay on the device."""

    def make(settings: Settings, arrays: Arrays) -> Engine:
        torch = module("torch")
        device = "cuda" if settings.on_gpu else "cpu"
        if settings.platform not in ("cpu", "gpu"):
            raise AbsentError(f"it cannot use a {settings.platform} here")
        if device == "cuda" and not torch.cuda.is_available():
            raise AbsentError("this torch sees no GPU")
        torch.set_num_threads(settings.threads)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        name = "float32" if settings.short is None else settings.short.name
        dtype = getattr(torch, name)
        run = _runner(way, settings.graph, device, name)

        def moved(given: Arrays) -> list[Any]:
            tensors = [torch.from_numpy(a).to(device) for a in given]
            return [t.to(dtype) if t.is_floating_point() else t for t in tensors]

        resident = moved(arrays)

        def call(given: Arrays) -> list[Any]:
            with torch.inference_mode():
                if not stays:
                    return [y.float().cpu().numpy() for y in run(*moved(given))]
                results = run(*resident)
                if device == "cuda":
                    torch.cuda.synchronize()
                return list(results)

        try:
            call(arrays)
            with torch.inference_mode():
                used = {y.device.type for y in run(*resident)}
        except Exception as error:  # compilers raise any exception
            raise AbsentError(last_line(error)) from error
        return Engine(call, "gpu" if used == {"cuda"} else " ".join(sorted(used)))

    return make


@functools.cache
def _runner(way: str, graph: Path, device: str, dtype: str) -> Callable[..., Any]:
    """The network on its device, compiled once for both kinds of arrays."""
    torch, network_module = (importlib.import_module(n) for n in ("torch", "torch_network"))
    network = network_module.Network(read_model(graph)).eval().to(device, getattr(torch, dtype))
    compiled = _WAYS[way]
    run: Callable[..., Any] = network if compiled is None else torch.compile(network, **compiled)
    return run


TORCH_ENGINES: dict[str, Callable[[Settings, Arrays], Engine]] = {
    **{way: _engine(way, stays=False) for way in _WAYS},
    **{f"{way}_on_device": _engine(way, stays=True) for way in _WAYS},
}
SLOW = frozenset(("pytorch_max_autotune", "pytorch_max_autotune_on_device"))  # minutes to compile
