"""Runs one network on one set of inputs in several engines: latency and differences."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.model.records import read_model
from sample_tasks.annotations import Positions, detection_count, detection_outputs
from web_demo.engines import REFERENCE, Engine, Engines

Network = Callable[[bool], bytes]  # the .tflite file; True: the int8 one


@dataclasses.dataclass(frozen=True)
class Row:
    """The results of one engine; if it has an `error`, the numbers are missing."""

    engine: Engine
    error: str | None = None
    ready_milliseconds: float = 0.0
    milliseconds: float = 0.0  # one inference
    difference: float | None = None  # None: not compared
    outputs: Sequence[np.ndarray] = ()
    report: str = ""

    @property
    def frames_per_second(self) -> float:
        return 1e3 / self.milliseconds if self.milliseconds else float("inf")


def compare(
    engines: Engines,
    chosen: Sequence[Engine],
    network: Network,
    inputs: Sequence[np.ndarray],
    *,
    is_compared: bool = True,
) -> Iterator[Row]:
    """Run the network in each engine and yield a row after each, with an error if it cannot run.

    With `is_compared`, the numpy reference also runs each network.
    """

    @functools.cache
    def expected(is_quantized: bool) -> list[np.ndarray]:
        opened = engines.open(network(is_quantized), REFERENCE)
        return opened.run(inputs, repeats=0).outputs

    for engine in chosen:
        try:
            content = network(engine.is_quantized)
            opened = engines.open(content, engine)
            run = opened.run(inputs)
            difference = None
            if is_compared:
                detections = detection_outputs(read_model(content).subgraphs[0])
                reference = expected(engine.is_quantized)
                difference = largest_difference(run.outputs, reference, detections)
            yield Row(
                engine,
                ready_milliseconds=opened.ready_milliseconds,
                milliseconds=run.milliseconds,
                difference=difference,
                outputs=run.outputs,
                report=opened.report,
            )
        except (JaxDelegateError, ValueError, RuntimeError) as error:
            yield Row(engine, error=str(error) or type(error).__name__)


def largest_difference(
    got: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    detections: Positions | None = None,
) -> float:
    """The largest difference of any element, as a fraction of its output's largest element.

    NaN if an element is NaN on one side only, infinite if shapes or numbers of detections differ.
    `detections` are the positions of a detector's outputs.
    """
    pairs = zip(_valid(got, detections), _valid(expected, detections), strict=True)
    return max((_difference(g, e) for g, e in pairs), default=0.0)


def _valid(outputs: Sequence[np.ndarray], detections: Positions | None) -> list[np.ndarray]:
    """The outputs without the rows after the last detection, which LiteRT does not write."""
    arrays = [np.asarray(array) for array in outputs]
    if detections is not None:
        count = detection_count(arrays, detections)
        for position in detections[:3]:
            arrays[position] = arrays[position][:, :count]
    return arrays


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    if got.shape != expected.shape:
        return float("inf")
    if expected.dtype.hasobject:  # strings
        return 0.0 if np.array_equal(got, expected) else float("inf")
    number = np.complex128 if expected.dtype.kind == "c" else np.float64
    g, e = got.astype(number), expected.astype(number)
    with np.errstate(invalid="ignore"):
        difference = np.where((g == e) | (np.isnan(g) & np.isnan(e)), 0.0, np.abs(g - e))
    largest = float(difference.max(initial=0.0))
    scale = float(np.abs(e[np.isfinite(e)]).max(initial=0.0))
    return largest / scale if scale else largest
