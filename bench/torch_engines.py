"""PyTorch among the engines of bench/compare.py, as its users run a network on a GPU.

The network is the .tflite itself (bench/torch_network.py), in the short dtype where precision loss
is allowed: eager, by torch.compile, and by torch.compile with CUDA graphs. Those that end in
`on_device` begin and end with arrays on the device.
"""

import importlib
from collections.abc import Callable
from typing import Any

from agreement import Arrays
from engines import Run, Settings
from harness import AbsentError, last_line

from jaxdelegate.model.records import read_model

_WAYS: dict[str, dict[str, Any] | None] = {
    "pytorch": None,  # not compiled
    "pytorch_compile": {},
    "pytorch_cuda_graphs": {"mode": "reduce-overhead"},
}


def _engine(way: str, *, stays: bool) -> Callable[[Settings, Arrays], Run]:
    """What makes an engine; where `stays`, arrays stay on the device."""

    def make(settings: Settings, arrays: Arrays) -> Run:
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise AbsentError("torch is not installed") from error
        network, device, dtype = _network(torch, settings)
        compiled = _WAYS[way]
        run = network if compiled is None else torch.compile(network, **compiled)

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
        except Exception as error:  # compilers raise all sorts
            raise AbsentError(last_line(error)) from error
        return call

    return make


def _network(torch: Any, settings: Settings) -> tuple[Any, str, Any]:
    """The network on its device, the device, and the dtype that it computes in."""
    network_module = importlib.import_module("torch_network")
    device = "cuda" if settings.on_gpu else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise AbsentError("this torch sees no GPU")
    dtype = getattr(torch, "float32" if settings.short is None else settings.short.name)
    torch.set_num_threads(settings.threads)
    network = network_module.Network(read_model(settings.graph)).eval()
    return network.to(device, dtype), device, dtype


TORCH_ENGINES: dict[str, Callable[[Settings, Arrays], Run]] = {
    **{way: _engine(way, stays=False) for way in _WAYS},
    **{f"{way}_on_device": _engine(way, stays=True) for way in _WAYS},
}
