"""Recorded operator cases: small models with inputs and another runtime's outputs.

A case is a folder with `model.tflite`, `data.npz` (`in_0`, `in_1`... and outputs by source:
`litert_ref_0`, `litert_opt_0`, `litert_xnn_0`, `tf_0`...) and `meta.json` (`outputs`,
`quantization`, `preferred_ref`, `nondeterministic`, `hybrid`). TFLite lets authors of delegates
reuse its kernel tests; so do we: `check(case, through(lambda: [MyDelegate()]))`.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.interpreter import Interpreter
from jaxdelegate.measuring.tolerance import EXACT, Tolerance, assert_close
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.testing.running import run_once

Run = Callable[[bytes, Sequence[np.ndarray]], Sequence[np.ndarray]]

_SOURCES = ("litert_ref", "litert_opt", "litert_xnn")
_RECORDED = "recorded by kernels that sum in another order"
_DYNAMIC_RANGE = "the recorded kernels quantize activations on the fly"
_REAL = "no kernel was recorded, only the real numbers that integers stand for"
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclasses.dataclass(frozen=True)
class OpCase:
    """One recorded case."""

    path: Path

    @functools.cached_property
    def meta(self) -> Mapping[str, Any]:
        """The content of `meta.json`."""
        meta: Mapping[str, Any] = json.loads((self.path / "meta.json").read_text())
        return meta

    @functools.cached_property
    def _data(self) -> Mapping[str, np.ndarray]:
        with np.load(self.path / "data.npz") as data:
            return {name: data[name] for name in data.files}

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def quantization(self) -> str:
        """How the model is quantized: "none", "int8", "int16x8" or "dynamic_range"."""
        return self.meta.get("quantization") or "none"

    @property
    def model(self) -> bytes:
        """The model's content."""
        return (self.path / "model.tflite").read_bytes()

    @property
    def inputs(self) -> list[np.ndarray]:
        """The inputs, in the main subgraph's order."""
        return self._numbered("in")

    @property
    def expected(self) -> list[np.ndarray]:
        """The outputs of the preferred source, else of the first that was recorded."""
        preferred = self.meta.get("preferred_ref")
        for source in filter(None, (f"litert_{preferred}", preferred, *_SOURCES, "tf")):
            if f"{source}_0" in self._data:
                return self._numbered(source)
        raise LookupError(f"{self}: no outputs were recorded")

    def _numbered(self, prefix: str) -> list[np.ndarray]:
        names = (f"{prefix}_{i}" for i in range(len(self._data)))
        return [self._data[name] for name in names if name in self._data]

    def tolerance(self, position: int, want: np.ndarray) -> tuple[Tolerance, str]:
        """The tolerance for output `position`, and its reason."""
        recorded = self.meta["outputs"][position]
        if want.dtype.kind not in "fcV":
            return EXACT, ""
        rtol, of_largest = 1e-4, 1e-4
        if want.dtype in _HALVES or recorded.get("dtype") in ("FLOAT16", "BFLOAT16"):
            rtol, of_largest = 1e-2, 2e-3
        if self.meta.get("hybrid"):
            return Tolerance(rtol, 1e-6, 2e-2), _DYNAMIC_RANGE
        lsb = recorded.get("lsb") or 0.0
        return Tolerance(rtol, 1e-6 + lsb, of_largest), _RECORDED

    def dequantized(self, position: int, y: Any) -> tuple[np.ndarray, float]:
        """Output `position` as float32, and its scale times what TFLite's own test allows."""
        quant = self.meta["outputs"][position]["quant"]
        (scale,), (zero,) = quant["scale"], quant["zero_point"]
        steps: float = self.meta["tflite_suite_tolerance"]["quant_multiplier"]
        return np.float32(scale) * (y.astype(np.float32) - np.float32(zero)), steps * scale


def find_cases(root: Path) -> Iterator[OpCase]:
    """Every case under a folder, in the order of their names."""
    for meta in sorted(root.glob("*/*/meta.json")):
        yield OpCase(meta.parent)


def check(case: OpCase, run: Run) -> None:
    """Run a case and compare every output with the recorded one."""
    got, expected = run(case.model, case.inputs), case.expected
    assert len(got) == len(expected), f"{len(got)} outputs, expected {len(expected)}"
    for i, (y, want) in enumerate(zip(got, expected, strict=True)):
        # bfloat16 is recorded as float32: npz has no such dtype.
        is_narrow = np.asarray(y).dtype == ml_dtypes.bfloat16
        result = np.asarray(y).astype(want.dtype) if is_narrow else y
        if case.meta.get("nondeterministic"):
            shape = np.shape(result)
            assert shape == want.shape, f"output {i}: shape {shape}, expected {want.shape}"
        elif want.dtype.kind in "SUO":
            assert_close([_strings(result)], [_strings(want)])
        elif want.dtype.kind == "f" and np.asarray(result).dtype.kind in "iu":
            real, step = case.dequantized(i, result)
            assert_close([real], [want], tolerance=Tolerance(atol=step), because=_REAL)
        else:
            tolerance, because = case.tolerance(i, want)
            assert_close([result], [want], tolerance=tolerance, because=because or _RECORDED)


def _strings(array: Any) -> np.ndarray:
    items = [s if isinstance(s, bytes) else str(s).encode() for s in np.ravel(array).tolist()]
    return np.array([*items, None], object)[:-1].reshape(np.shape(array))


def through(delegates: Callable[[], Sequence[SimpleDelegate]]) -> Run:
    """Run models in our interpreter with fresh delegates; without any it is the numpy reference."""

    def run(model: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        interpreter = Interpreter(model_content=model, experimental_delegates=delegates())
        return run_once(interpreter, inputs)

    return run
