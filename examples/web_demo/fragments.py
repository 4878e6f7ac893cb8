"""Parts of the demo's page as HTML. All text is escaped: names come from the user's files."""

import html
import math
from collections.abc import Iterable, Sequence

from sample_tasks.annotations import Annotation
from web_demo.comparison import Row
from web_demo.uploads import Output

_HEADINGS = ("Engine", "Ready (ms)", "Latency (ms)", "Frames/s", "Largest difference")
_MAX_ROWS = 8  # scores


def comparison(rows: Sequence[Row], waiting: Sequence[str] = ()) -> str:
    """The table of engines; `waiting` names those without a row yet."""
    fastest = min((r.milliseconds for r in rows if r.error is None), default=0.0)
    body = [
        _row(r, fastest) if r.error is None else _note_row(r.engine.name, r.error, "error")
        for r in rows
    ]
    body += [_note_row(name, "waiting" if i else "running ...") for i, name in enumerate(waiting)]
    return _table("engines", body, _HEADINGS)


def _row(row: Row, fastest: float) -> str:
    share = 100 * fastest / row.milliseconds if row.milliseconds else 100
    bar = f"<span class='bar'><span style='width:{share:.1f}%'></span></span>"
    cells = (
        f"{row.ready_milliseconds:,.0f}",
        _number(row.milliseconds),
        f"{_number(row.frames_per_second)}{bar}",
        _difference(row.difference),
    )
    name = html.escape(row.engine.name)
    return f"<tr><th scope='row'>{name}</th>{''.join(f'<td>{c}</td>' for c in cells)}</tr>"


def _note_row(name: str, text: str, kind: str = "waiting") -> str:
    name, text = html.escape(name), html.escape(text)
    return f"<tr class='{kind}'><th scope='row'>{name}</th><td colspan='4'>{text}</td></tr>"


def _number(value: float) -> str:
    return f"{value:,.{max(0, 2 - len(str(int(value))) + 1) if value < 100 else 0}f}"


def _difference(value: float | None) -> str:
    if value is None:
        return "&ndash;"
    if value == 0:
        return "0"
    return f"{value:.1e}" if math.isfinite(value) else str(value)


def annotation(what: Annotation) -> str:
    """Scores of objects, classes or joints, or the mask's shares."""
    if what.boxes:
        return _scores((box.label.name, box.label.score) for box in what.boxes)
    if what.labels:
        return _scores((label.name, label.score) for label in what.labels)
    if what.key_points:
        return _scores(((p.name, p.score) for p in what.key_points), most=len(what.key_points))
    if what.mask is not None:
        return _mask(what)
    return message("Nothing was found in this picture.")


def _mask(what: Annotation) -> str:
    assert what.mask is not None
    shares = [
        (name, float((what.mask == value).mean())) for value, name in enumerate(what.mask_names)
    ]
    present = sorted((s for s in shares if s[1] > 0), key=lambda s: -s[1])
    return _scores(present) + message("Share of the picture's pixels.")


def _scores(rows: Iterable[tuple[str, float]], most: int = _MAX_ROWS) -> str:
    body = [
        f"<tr><th scope='row'>{html.escape(name)}</th>"
        f"<td><span class='bar'><span style='width:{100 * min(max(score, 0), 1):.1f}%'></span>"
        f"</span></td><td>{100 * score:.1f} %</td></tr>"
        for name, score in list(rows)[:most]
    ]
    return _table("scores", body)


def outputs(rows: Sequence[Output], inputs: str) -> str:
    body = [
        f"<tr><th scope='row'>{html.escape(r.name)}</th><td>{html.escape(r.type)}</td>"
        f"<td>{html.escape(r.values)}</td></tr>"
        for r in rows
    ]
    return message(inputs) + _table("outputs", body, ("Output", "Type", "Values"))


def report(text: str) -> str:
    """A report of `Opened`: its remarks as paragraphs, its table preformatted."""
    remarks, _, table = text.partition("\n\n")
    notes = "".join(map(message, remarks.splitlines()))
    if not table:
        return notes
    return f"{notes}<pre class='report' tabindex='0'>{html.escape(table)}</pre>"


def message(text: str) -> str:
    return f"<p class='note'>{html.escape(text)}</p>"


def hint(text: str) -> str:
    return f"<p class='hint' role='status'>{html.escape(text)}</p>"


def error(text: str) -> str:
    return f"<p class='error' role='alert'>{html.escape(text)}</p>"


def _table(kind: str, body: Iterable[str], headings: Sequence[str] = ()) -> str:
    cells = "".join(f"<th scope='col'>{text}</th>" for text in headings)
    head = f"<thead><tr>{cells}</tr></thead>" if cells else ""
    return f"<table class='{kind}'>{head}<tbody>{''.join(body)}</tbody></table>"
