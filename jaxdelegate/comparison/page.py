"""A comparison as one self-contained HTML page."""

import math
from collections.abc import Sequence

from jaxdelegate.comparison.diff import InferenceDiff
from jaxdelegate.comparison.layers import LayerError
from jaxdelegate.comparison.metrics import TensorComparison
from jaxdelegate.comparison.text import histogram, verdict
from jaxdelegate.report import page as pages
from jaxdelegate.report.page import Markup, element

_DECADES = 8  # of the logarithmic bars, which end at an error of 100 %


def page(result: InferenceDiff) -> str:
    name = result.model.replace("\\", "/").rpartition("/")[2]
    parts = [
        element("h1", f"Inference diff: {name}"),
        element("p", verdict(result), "ok" if result.is_healthy else "bad"),
        _facts(result),
        element("h2", "Outputs"),
        _outputs(result.outputs),
    ]
    if result.layers is not None:
        parts += [
            element("h2", "Layers, in execution order"),
            element("p", result.layers.conclusion()),
            element(
                "p",
                "Own: the operator on the reference's inputs. Whole: in the delegated program. "
                f"Bars: own error / largest value, 1e-{_DECADES} to 1, logarithmic.",
            ),
            _layers(result.layers.layers),
        ]
    # Rounding beyond the bounds is not red.
    kind = "healthy" if result.is_healthy else "broken"
    return pages.page(f"{name} - inference diff", parts, kind)


def _facts(result: InferenceDiff) -> Markup:
    rows = [
        ("Model", result.model),
        ("Test", f"{result.test}. {result.delegation}".strip()),
        ("Reference", result.expected),
        ("Runs", f"{result.num_runs}, seed {result.seed}"),
        ("Test run latency", str(result.test_latency)),
        ("Reference run latency", str(result.reference_latency)),
    ]
    return pages.table((), rows)


def _outputs(outputs: Sequence[TensorComparison]) -> Markup:
    names = (
        "output", "mean abs", "max abs", "of largest", "relative", "cosine",
        "SNR (dB)", "unequal", "limit", "LSB differences",
    )  # fmt: skip
    rows = [
        (
            pages.with_small(output.name, f"{output.dtype} {list(output.shape)}"),
            output.mean_abs, output.max_abs, output.relative_to_largest, output.relative,
            output.cosine, output.snr_db, output.unequal, output.limit,
            output.shape_mismatch or histogram(output.lsb_histogram or {}),
        )
        for output in outputs
    ]  # fmt: skip
    return pages.table(names, rows, (not output.agrees for output in outputs))


def _layers(layers: Sequence[LayerError]) -> Markup:
    names = (
        "node", "operator, tensor", "runs on", "own max abs", "own of largest", "",
        "whole max abs", "whole of largest", "limit",
    )  # fmt: skip
    rows = [
        (
            layer.node,
            pages.with_small(layer.operator, layer.tensor.name),
            {True: "delegate", False: "host", None: ""}[layer.delegated],
            *_errors(layer.local),
            pages.bar(_decades(layer.own.relative_to_largest)),
            *_errors(layer.tensor),
            layer.own.limit,
        )
        for layer in layers
    ]
    return pages.table(names, rows, (not layer.own.agrees for layer in layers))


def _errors(comparison: TensorComparison | None) -> tuple[float | None, float | None]:
    if comparison is None:
        return None, None
    return comparison.max_abs, comparison.relative_to_largest


def _decades(error: float | None) -> float:
    return 0.0 if not error else min(max(1 + math.log10(error) / _DECADES, 0.0), 1.0)
