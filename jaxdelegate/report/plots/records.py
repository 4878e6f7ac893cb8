"""Reading the tools' JSON results, and their names in a figure."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdelegate.errors import OptionError

Record = Mapping[str, Any]
Records = Sequence[tuple[str, Record]]  # each with the path of its file

_MAX_NAMES = 3  # models or devices in a title


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """The results in a file: one, a list, or one in each line.

    Of `benchmark_performance_options`, the configurations that ran, by their names.
    """
    try:
        found = _parsed(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one, too
        raise OptionError(f"{path}: not a JSON file: {error}") from error
    if not all(isinstance(record, dict) for record in found):
        raise OptionError(f"{path}: expected a JSON object or a list of them")
    return [
        {**record["result"], "name": record["configuration"]["name"]}
        if "configuration" in record
        else record
        for record in found
        if "configuration" not in record or isinstance(record.get("result"), dict)
    ]


def _parsed(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]
    return content if isinstance(content, list) else [content]


def series_name(path: str, record: Record) -> str:
    """The benchmark's name, or else its model, where it ran, and its options."""
    if record.get("name"):
        return str(record["name"])
    options = [f"--{name}={value}" for name, value in dict(record.get("flags") or {}).items()]
    parts = [_model(path, record), record.get("platform"), *options]
    return " ".join(str(part) for part in parts if part)


def distinguished(records: Records) -> list[tuple[str, Record]]:
    """Each of several results with its series, or its file, or its number where these are equal."""
    if len(records) == 1:
        return [("", records[0][1])]
    names = [series_name(path, record) for path, record in records]
    files = [Path(path).stem for path, _ in records]
    found = []
    for i, (_, record) in enumerate(records):
        unique = [texts[i] for texts in (names, files) if texts.count(texts[i]) == 1]
        found.append((unique[0] if unique else f"{files[i]} ({i + 1})", record))
    return found


def title(records: Records) -> str:
    models = _distinct(_model(path, record) for path, record in records)
    return f"{models}\n{_distinct(_device(record) for _, record in records)}".rstrip()


def _model(path: str, record: Record) -> str:
    return Path(str(record.get("model", path))).stem


def _device(record: Record) -> str:
    if record.get("tool") == "inference_diff":
        return f"{record['test']} against {record['reference']}. {record['delegation']}"
    if record.get("device"):
        return f"on {record['device']}"
    return "in the stock interpreter" if record.get("interpreter") == "litert" else ""


def _distinct(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(filter(None, names)))
    more = len(found) - _MAX_NAMES
    return ", ".join(found[:_MAX_NAMES]) + (f" and {more} others" if more > 0 else "")
