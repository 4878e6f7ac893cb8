"""Per-image results on disk: a part file that survives a kill, then JSON lines or Parquet.

The first line of the part file identifies the run; one line per image follows, in order. Only whole
batches are used, so that a resumed run computes the same batches.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from google.protobuf import json_format

from jaxdelegate.errors import OptionError
from jaxdelegate.evaluation.files import DataError, StrPath
from jaxdelegate.model.writing import write_file
from jaxdelegate.optional import optional_module
from jaxdelegate.version import __version__

Row = dict[str, Any]

_SUFFIXES = (".jsonl", ".parquet")


def is_results_path(path: StrPath) -> bool:
    return Path(path).suffix in _SUFFIXES


def check_results_path(path: StrPath) -> Path:
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise OptionError(f"results file {str(path)!r}: must end in {' or '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise OptionError(f"results file {str(path)!r}: no folder {str(path.parent)!r}")
    if path.suffix == ".parquet":
        optional_module("pyarrow.parquet", "eval")
    return path


def identity(
    task: str, model_digest: str, options: Mapping[str, Any], images: Iterable[Sequence[Any]]
) -> dict[str, Any]:
    """What must be the same in a run and the run that it resumes."""
    listed = hashlib.sha256()
    for image in images:
        listed.update(f"{json.dumps(list(image))}\n".encode())
    return {
        "task": task,
        "version": __version__,
        "model": model_digest,
        **options,
        "images": listed.hexdigest(),
    }


class PartFile:
    """Rows of finished batches next to the results file, kept until the results are complete."""

    def __init__(
        self, path: Path, run: Mapping[str, Any], *, batch_size: int, total: int, resume: bool
    ) -> None:
        self.path = path
        self.rows: list[Row] = []
        header = json.dumps(run, sort_keys=True)
        end = 0
        if resume and path.exists():
            end = self._read(header, batch_size, total)
        self._file = path.open("r+b" if end else "wb")
        if end:
            self._file.truncate(end)
            self._file.seek(end)
        else:
            self._append(f"{header}\n")

    def _read(self, header: str, batch_size: int, total: int) -> int:
        """Read whole batches; returns the offset at which they end, or 0."""
        first, *lines = self.path.read_bytes().split(b"\n")[:-1] or [b""]
        if not first:
            return 0
        self._check_header(first, header)
        for line in lines[:total]:
            try:
                self.rows.append(json.loads(line))
            except ValueError:
                break
        if len(self.rows) != total:
            del self.rows[len(self.rows) // batch_size * batch_size :]
        return sum(len(line) + 1 for line in (first, *lines[: len(self.rows)]))

    def _check_header(self, stored: bytes, expected: str) -> None:
        try:
            left, right = json.loads(stored), json.loads(expected)
            names = sorted(k for k in {*left, *right} if left.get(k) != right.get(k))
        except (ValueError, TypeError, AttributeError):
            names = ["header"]
        if names:
            raise DataError(
                f"{self.path} was written with different {', '.join(names)}; delete it, or start "
                "over with --noresume"
            )

    def add(self, rows: Sequence[Row]) -> None:
        """Append one batch; it is on disk when this returns."""
        self._append("".join(f"{json.dumps(row)}\n" for row in rows))
        self.rows += rows

    def _append(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


def write_results(path: Path, rows: Sequence[Row], fields: Mapping[str, str]) -> None:
    """Write rows as JSON lines or Parquet, by the suffix; the file is complete or absent."""

    def write(file: BinaryIO) -> None:
        if path.suffix == ".parquet":
            _write_parquet(file, rows, fields)
        else:
            file.writelines(f"{json.dumps(row)}\n".encode() for row in rows)

    write_file(os.fspath(path), write)


def write_metrics(path: Path, metrics: Any) -> None:
    """Write a message as JSON if the path ends in .json, otherwise in TFLite's binary form."""
    if path.suffix == ".json":
        text = json_format.MessageToJson(metrics, preserving_proto_field_name=True)
        path.write_text(f"{text}\n")
    else:
        path.write_bytes(metrics.SerializeToString())


def _write_parquet(file: BinaryIO, rows: Sequence[Row], fields: Mapping[str, str]) -> None:
    pa, parquet = (optional_module(name, "eval") for name in ("pyarrow", "pyarrow.parquet"))
    schema = pa.schema([(name, _parquet_type(pa, kind)) for name, kind in fields.items()])
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), file)


def _parquet_type(pa: Any, name: str) -> Any:
    if name.endswith("[]"):
        return pa.list_(_parquet_type(pa, name.removesuffix("[]")))
    return pa.type_for_alias(name)


def finite(x: float) -> float | None:
    """A number for JSON, which has no NaN and no infinities: these are null."""
    return float(x) if math.isfinite(x) else None
