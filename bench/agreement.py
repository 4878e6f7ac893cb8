"""Whether an engine computes the model correctly, checked before anything is timed.

LiteRT's reference kernels define the expected outputs. An engine may differ from them by:

* float32: 1e-4 of the largest value of each output, the bound for whole networks.
* Shorter dtypes: networks magnify rounding, those with random weights most. Rounding nothing but
  the image of MobileNet v1 to bfloat16 moves its largest output by a twentieth, so no fixed bound
  separates rounding from a mistake. The yardstick is what LiteRT itself computes, in float32, when
  weights and inputs are rounded to the short dtype. An engine also rounds the other factor of each
  product, which makes 1.4 times the error, and perhaps what it stores between operators. This grows
  with the depth of a network: PyTorch's eager float16 is 3.4 (ResNet50) and 4.7 (BERT small) times
  the yardstick away, at 0.002 of the largest output. So one rounding step of float16, by the
  largest value, is free there.
* Quantized files: how often to round between operators is the engine's choice (XNNPACK scales
  sums in float, a float view rounds nothing), and networks magnify that as well. The yardstick is
  XNNPACK; one step of eight bits is free in addition.

An engine may be _TIMES the yardstick's root mean square away. PyTorch judges its compiled models
likewise, by their root mean square error over that of eager mode in the same dtype, and allows
three times in float16 and bfloat16 (torch/_dynamo/utils.py, same).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType
from harness import AbsentError, last_line

from jaxdelegate.comparison.rounding import round_to, rounded_file
from jaxdelegate.measuring.tolerance import NETWORK
from jaxdelegate.model.records import read_model
from jaxdelegate.testing.running import random_inputs, run_once

Arrays = Sequence[np.ndarray]

# What file_kind calls files with quantized values and weights (of eight bits, of sixteen and
# eight), and with quantized weights alone.
QUANTIZED = ("int8", "int16x8", "dynamic range")
_TIMES = 2.0
_STEP = 1 / 127  # of eight bits, by the largest value
_HALF_STEP = float(np.finfo(np.float16).eps)
_IMAGES = 2  # distinct ones in a batch, since reference kernels are slow
_EXACT = OpResolverType.BUILTIN_REF  # lacks some operators that the next one has
_PLAIN = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES


@dataclasses.dataclass(frozen=True)
class Judge:
    """The expected outputs, and how far rounding alone moves them.

    Attributes:
        want: the outputs.
        yardstick: the outputs of the rounded model; None: nothing may be rounded.
        free: error that is allowed in addition, as a share of each output's largest value.
    """

    want: Arrays
    yardstick: Arrays | None = None
    free: float = NETWORK.of_largest

    def error(self, got: Arrays) -> float:
        """The largest difference of any output, as a share of that output's largest value."""
        pairs = zip(got, self.want, strict=True)
        return max((_furthest(g, w) / (_largest(w) or 1.0) for g, w in pairs), default=0.0)

    def times_yardstick(self, got: Arrays) -> float | None:
        """The root mean square error over the yardstick's, of the output where it is largest."""
        if self.yardstick is None:
            return None
        rows = zip(got, self.yardstick, self.want, strict=True)
        return max((_rms(g, w) / y for g, short, w in rows if (y := _rms(short, w))), default=None)

    def why_not(self, got: Arrays) -> str | None:
        """What is wrong with an engine's outputs; None if they are correct."""
        if [g.shape for g in got] != [w.shape for w in self.want]:
            return f"outputs of shape {_shapes(got)} for {_shapes(self.want)}"
        yardstick = self.want if self.yardstick is None else self.yardstick
        distance = _furthest if self.yardstick is None else _rms
        for g, w, short in zip(got, self.want, yardstick, strict=True):
            found = distance(g, w)
            allowed = _TIMES * distance(short, w) + self.free * (_largest(w) or 1.0)
            if not found <= allowed:  # NaN is wrong too
                return f"disagrees: error {found:.2g}, {allowed:.2g} allowed"
        return None


def judge(content: bytes, arrays: Arrays, short: np.dtype | None, *, exact: bool = True) -> Judge:
    """Make the judge of engines that may round to `short` (None: float32), for these inputs.

    Args:
        content: the .tflite.
        arrays: its inputs.
        short: the dtype that engines may round to; None: float32.
        exact: by LiteRT's reference kernels; otherwise by its optimized ones, which take a
            fraction of their time on large networks. Delegates take part in neither.

    Raises:
        AbsentError: LiteRT cannot run the model on such inputs.
    """
    few = _without_repetition(arrays)
    want = reference(content, few) if exact else stock_outputs(content, few, _PLAIN)
    yardstick, free = None, NETWORK.of_largest
    if file_kind(content) in QUANTIZED:
        yardstick, free = stock_outputs(content, few, OpResolverType.AUTO), _STEP
    elif short is not None:
        rounded = [round_to(a, short) for a in few]
        yardstick = stock_outputs(rounded_file(content, short), rounded, _PLAIN)
        free = _HALF_STEP if short == np.float16 else free
    if few is arrays:
        return Judge(want, yardstick, free)
    batch = max(len(a) for a, f in zip(arrays, few, strict=True) if a.shape != f.shape)
    return Judge(_repeated(want, batch), yardstick and _repeated(yardstick, batch), free)


def _without_repetition(arrays: Arrays) -> Arrays:
    """The distinct images of a batch that `inputs` made; other arrays unchanged."""
    few = [a[:_IMAGES] if _repeats(a) else a for a in arrays]
    return arrays if all(f is a for f, a in zip(few, arrays, strict=True)) else few


def _repeats(array: np.ndarray) -> bool:
    is_long = array.ndim > 0 and len(array) > _IMAGES
    return is_long and np.array_equal(array, np.resize(array[:_IMAGES], array.shape))


def reference(content: bytes, arrays: Arrays) -> list[np.ndarray]:
    """The outputs of LiteRT's reference kernels, or of its plain ones if those lack an operator."""
    try:
        return stock_outputs(content, arrays, _EXACT)
    except AbsentError:
        return stock_outputs(content, arrays, _PLAIN)


def stock_outputs(content: bytes, arrays: Arrays, kernels: OpResolverType) -> list[np.ndarray]:
    try:
        interpreter = StockInterpreter(model_content=content, experimental_op_resolver_type=kernels)
        return run_once(interpreter, arrays)
    except (RuntimeError, ValueError) as error:
        raise AbsentError(f"LiteRT: {last_line(error)}") from error


def inputs(
    details: Sequence[Mapping[str, Any]], batch: int, between: tuple[float, float] = (-1.0, 1.0)
) -> list[np.ndarray]:
    """Random inputs for a batch that repeats two images, so that checking two is enough.

    Args:
        details: an interpreter's `get_input_details()`.
        batch: takes the place of a first dimension of 1.
        between: the least and the largest float.
    """
    sizes = [tuple(d["shape"]) for d in details]
    grow = [len(size) > 0 and size[0] == 1 for size in sizes]
    few = [
        {**d, "shape": [min(batch, _IMAGES), *size[1:]]} if g else d
        for d, size, g in zip(details, sizes, grow, strict=True)
    ]
    low, high = between
    arrays = [
        ((a + 1) * ((high - low) / 2) + low).astype(a.dtype) if a.dtype.kind == "f" else a
        for a in random_inputs(few)
    ]
    return [
        np.resize(a, (batch, *a.shape[1:])) if g else a for a, g in zip(arrays, grow, strict=True)
    ]


def file_kind(content: bytes) -> str:
    """How a model stores its numbers: "float32", "float16" or one of QUANTIZED."""
    tensors = [t for s in read_model(content).subgraphs for t in s.tensors]
    quantized = [t for t in tensors if t.spec().is_quantized]
    computed = {t.dtype for t in quantized if t.data is None}
    if np.dtype(np.int16) in computed:
        return "int16x8"
    if computed:
        return "int8"
    if quantized:
        return "dynamic range"
    is_half = any(t.dtype == np.float16 and t.data is not None for t in tensors)
    return "float16" if is_half else "float32"


def _repeated(outputs: Arrays, batch: int) -> list[np.ndarray]:
    if any(y.ndim == 0 or len(y) != _IMAGES for y in outputs):
        raise AbsentError(f"outputs of shape {_shapes(outputs)} are no batch of {_IMAGES}")
    return [np.resize(y, (batch, *y.shape[1:])) for y in outputs]


def _furthest(g: np.ndarray, w: np.ndarray) -> float:
    return float(np.abs(g.astype(np.float64) - w).max(initial=0))


def _rms(g: np.ndarray, w: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(g.astype(np.float64) - w)))) if g.size else 0.0


def _largest(w: np.ndarray) -> float:
    return float(np.abs(w.astype(np.float64)).max(initial=0))


def _shapes(arrays: Arrays) -> str:
    return ", ".join(str(list(a.shape)) for a in arrays)
