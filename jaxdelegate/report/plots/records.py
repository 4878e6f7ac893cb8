"""The tools' JSON results: reading them, and what to call them in a figure."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdelegate.errors import OptionError

Record = Mapping[str, Any]
Records = Sequence[tuple[str, Record]]  # each with the path of its file

_MOST_MODELS = 3  # named in a title


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """The results in a file: one, a list, or one in each line.

    Of `benchmark_performance_options` those configurations that ran, by their names.

    Raises:
        OptionError: it is not JSON, or holds something else than objects.
        OSError: it cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = _parsed(text)
    except ValueError as error:  # UnicodeDecodeError is one, too
        raise OptionError(f"{path}: not a JSON file: {error}") from error
    if not all(isinstance(record, dict) for record in found):
        raise OptionError(f"{path}: want a JSON object or a list of them")
    return [_of_configuration(r) if "configuration" in r else r for r in found if _has_run(r)]


def _parsed(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]
    return content if isinstance(content, list) else [content]


def _has_run(record: Record) -> bool:
    return "configuration" not in record or isinstance(record.get("result"), dict)


def _of_configuration(record: Record) -> Record:
    configuration = record["configuration"]
    return {**record["result"], "name": configuration["name"]}


def series_name(path: str, record: Record) -> str:
    """What the user called the benchmark, or else its model, where it ran, and its options."""
    if record.get("name"):
        return str(record["name"])
    options = [f"--{name}={value}" for name, value in dict(record.get("flags") or {}).items()]
    parts = [_model(path, record), record.get("platform") or "", *options]
    return " ".join(str(part) for part in parts if part)


def title(records: Records) -> str:
    """The models and the devices of some results."""
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
    more = len(found) - _MOST_MODELS
    return ", ".join(found[:_MOST_MODELS]) + (f" and {more} others" if more > 0 else "")
