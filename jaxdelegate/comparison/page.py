"""A comparison as one self-contained HTML page without scripts."""

import html
import math
from collections.abc import Iterable, Sequence

from jaxdelegate.comparison.diff import InferenceDiff
from jaxdelegate.comparison.layers import LayerError
from jaxdelegate.comparison.metrics import TensorComparison
from jaxdelegate.comparison.text import histogram, verdict

_STYLE = """
body{font:14px/1.4 system-ui,"DejaVu Sans",sans-serif;margin:1.5em;color:#222;background:#fff}
h1{font-size:22px;overflow-wrap:anywhere}h2{font-size:17px}
div{overflow-x:auto}
table{border-collapse:collapse;margin:1em 0;font-size:13px}
th,td{padding:.3em .55em;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
td small{display:block;color:#555;font-size:12px;min-width:14em;overflow-wrap:anywhere}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.bars{width:12em;min-width:5em}
tr.wrong td{background:#fdd}
.bar{display:inline-block;height:.7em;background:#0072b2;vertical-align:middle}
tr.wrong .bar{background:#b00020}
.healthy tr.wrong td{background:#fff2cc}
.healthy tr.wrong .bar{background:#b26a00}
.ok{color:#176b17}.bad{color:#b00020}
"""
_DECADES = 8  # of the logarithmic bars, which end at an error of 100 %


def page(result: InferenceDiff) -> str:
    parts = [
        f"<h1>Inference diff: {html.escape(_file(result.model))}</h1>",
        f'<p class="{"ok" if result.is_healthy else "bad"}">{html.escape(verdict(result))}</p>',
        _facts(result),
        "<h2>Outputs</h2>",
        _outputs(result.outputs),
    ]
    if result.layers is not None:
        parts += [
            "<h2>Layers, in execution order</h2>",
            f"<p>{html.escape(result.layers.conclusion())}</p>",
            "<p>Own: the operator on the reference's inputs. Whole: in the delegated program. "
            f"Bars: own error / largest value, 1e-{_DECADES} to 1, logarithmic.</p>",
            _layers(result.layers.layers),
        ]
    title = f"{html.escape(_file(result.model))} - inference diff"
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    health = "healthy" if result.is_healthy else "broken"  # rounding beyond the bounds is not red
    return (
        f'<!DOCTYPE html><html lang="en"><head>{head}</head>'
        f'<body class="{health}">{body}</body></html>\n'
    )


def _file(model: str) -> str:
    return model.replace("\\", "/").rpartition("/")[2]


def _facts(result: InferenceDiff) -> str:
    rows = [
        ("Model", result.model),
        ("Test", f"{result.test}. {result.delegation}".strip()),
        ("Reference", result.expected),
        ("Runs", f"{result.num_runs}, seed {result.seed}"),
        ("Test run latency", str(result.test_latency)),
        ("Reference run latency", str(result.reference_latency)),
    ]
    return _table((), [(False, [_cell(name), _cell(text)]) for name, text in rows])


def _outputs(outputs: Iterable[TensorComparison]) -> str:
    names = (
        "output", "mean abs", "max abs", "of largest", "relative", "cosine",
        "SNR (dB)", "unequal", "limit", "LSB differences",
    )  # fmt: skip
    rows = []
    for output in outputs:
        cells = [_cell(output.name, f"{output.dtype} {list(output.shape)}")]
        cells += map(
            _number,
            (
                output.mean_abs, output.max_abs, output.relative_to_largest, output.relative,
                output.cosine, output.snr_db, output.unequal, output.limit,
            ),
        )  # fmt: skip
        cells.append(_cell(output.shape_mismatch or histogram(output.lsb_histogram or {})))
        rows.append((not output.agrees, cells))
    return _table(names, rows)


def _layers(layers: Sequence[LayerError]) -> str:
    names = (
        "node", "operator, tensor", "runs on", "own max abs", "own of largest", "",
        "whole max abs", "whole of largest", "limit",
    )  # fmt: skip
    rows = []
    for layer in layers:
        where = {True: "delegate", False: "host", None: ""}[layer.delegated]
        local, whole = layer.local, layer.tensor
        own = (None, None) if local is None else (local.max_abs, local.relative_to_largest)
        cells = [
            _number(layer.node), _cell(layer.operator, whole.name), _cell(where),
            *map(_number, own),
            _bar(layer.own.relative_to_largest),
            _number(whole.max_abs), _number(whole.relative_to_largest), _number(layer.own.limit),
        ]  # fmt: skip
        rows.append((not layer.own.agrees, cells))
    return _table(names, rows)


def _bar(error: float | None) -> str:
    share = 0.0 if not error else min(max(1 + math.log10(error) / _DECADES, 0.0), 1.0)
    return f'<td class="bars"><span class="bar" style="width:{share:.1%}"></span></td>'


def _cell(text: str, below: str = "") -> str:
    small = f"<small>{html.escape(below)}</small>" if below else ""
    return f"<td>{html.escape(text)}{small}</td>"


def _number(value: float | None) -> str:
    return f'<td class="n">{"" if value is None else format(value, ".4g")}</td>'


def _table(names: Iterable[str], rows: Iterable[tuple[bool, Sequence[str]]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "\n".join(
        f'<tr class="wrong">{"".join(cells)}</tr>' if wrong else f"<tr>{''.join(cells)}</tr>"
        for wrong, cells in rows
    )
    return f"<div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
