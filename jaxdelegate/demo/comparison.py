"""One network and one set of inputs through several engines: how fast, and how far apart."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxdelegate.demo.engines import REFERENCE, Engine, Engines, Opened, Run
from jaxdelegate.errors import JaxDelegateError

Network = Callable[[bool], bytes]  # the .tflite file; True: the int8 one


@dataclasses.dataclass(frozen=True)
class Row:
    """What one engine did. With an `error`, the numbers are missing."""

    engine: Engine
    error: str | None = None
    ready_milliseconds: float = 0.0
    milliseconds: float = 0.0  # of one inference
    difference: float | None = None  # None: there is nothing to compare with
    outputs: Sequence[np.ndarray] = ()
    report: str = ""

    @property
    def frames_per_second(self) -> float:
        """Inferences in a second, one after the other."""
        return 1e3 / self.milliseconds if self.milliseconds else float("inf")


def compare(
    engines: Engines,
    chosen: Sequence[Engine],
    network: Network,
    inputs: Sequence[np.ndarray],
    *,
    is_compared: bool = True,
) -> Iterator[Row]:
    """Run the network in each engine and yield its row when it is there.

    Args:
        engines: what is opened already.
        chosen: in this order.
        network: the .tflite file, float or int8.
        inputs: an array for each of its inputs; both networks take the same.
        is_compared: run the numpy reference, too, on each of the networks that is run.

    Yields:
        A row for each engine; one that cannot run the network gives its error.
    """

    @functools.cache
    def wanted(is_quantized: bool) -> list[np.ndarray]:
        opened = engines.open(network(is_quantized), REFERENCE)
        return opened.run(inputs, repeats=0).outputs

    for engine in chosen:
        try:
            content = network(engine.is_quantized)
            opened = engines.open(content, engine)
            run = opened.run(inputs)
            reference = wanted(engine.is_quantized) if is_compared else None
            yield _row(engine, opened, run, reference)
        except (JaxDelegateError, ValueError, RuntimeError) as error:
            yield Row(engine, error=str(error) or type(error).__name__)


def _row(engine: Engine, opened: Opened, run: Run, reference: Sequence[np.ndarray] | None) -> Row:
    return Row(
        engine,
        ready_milliseconds=opened.ready_milliseconds,
        milliseconds=run.milliseconds,
        difference=None if reference is None else largest_difference(run.outputs, reference),
        outputs=run.outputs,
        report=opened.report,
    )


def largest_difference(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> float:
    """The largest difference of any element, as a fraction of its output's largest element.

    NaN if an element is NaN on one side only, infinite if shapes or numbers of detections differ.
    """
    pairs = zip(_written(got), _written(want), strict=True)
    return max((_difference(g, w) for g, w in pairs), default=0.0)


def _written(outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Detections as far as they are counted: LiteRT writes none of the rows behind.

    The outputs of TFLite_Detection_PostProcess are boxes [1, n, 4], classes [1, n], scores [1, n]
    and the count [1]. Others stay as they are.
    """
    arrays = [np.asarray(array) for array in outputs]
    shapes = [array.shape for array in arrays]
    n = shapes[0][1] if shapes and len(shapes[0]) == 3 else 0
    if shapes != [(1, n, 4), (1, n), (1, n), (1,)]:
        return arrays
    count = min(max(int(arrays[3][0]), 0), n)
    return [*(array[:, :count] for array in arrays[:3]), arrays[3]]


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    if got.shape != want.shape:
        return float("inf")
    if want.dtype.hasobject:  # strings
        return 0.0 if np.array_equal(got, want) else float("inf")
    number = np.complex128 if want.dtype.kind == "c" else np.float64
    g, w = got.astype(number), want.astype(number)
    with np.errstate(invalid="ignore"):
        off = np.where((g == w) | (np.isnan(g) & np.isnan(w)), 0.0, np.abs(g - w))
    largest = float(off.max(initial=0.0))
    scale = float(np.abs(w[np.isfinite(w)]).max(initial=0.0))
    return largest / scale if scale else largest
