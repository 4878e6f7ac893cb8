import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as pq
import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.evaluation.files import DataError
from jaxdelegate.evaluation.results import (
    PartFile,
    Row,
    check_results_path,
    identity,
    write_results,
)
from jaxdelegate.optional import optional_module

RUN = identity("task", "digest", {"k": 1}, [("a", 3)])
FIELDS = {"image": "string", "ids": "int32[]", "boxes": "float[][]"}


def rows(first: int, count: int) -> list[Row]:
    return [{"image": f"{i}", "ids": [i], "boxes": [[0.1, i]]} for i in range(first, first + count)]


def opened(path: Path, run: Any = RUN, *, resume: bool = True) -> PartFile:
    return PartFile(path, run, batch_size=4, total=10, resume=resume)


def write(path: Path, count: int) -> None:
    with opened(path, resume=False) as part:
        part.add(rows(0, count))


@pytest.mark.parametrize(("written", "taken"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (10, 10)])
def test_whole_batches_are_resumed(tmp_path: Path, written: int, taken: int) -> None:
    path = tmp_path / "x.part"
    write(path, written)
    with opened(path) as part:
        assert part.rows == rows(0, taken)
        part.add(rows(taken, 2))
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines[1:]] == rows(0, taken + 2)


def test_every_point_of_a_kill(tmp_path: Path) -> None:
    """Whatever part of the file reached the disk, exactly its whole batches are resumed."""
    path = tmp_path / "x.part"
    write(path, 10)
    whole = path.read_bytes()
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in sorted({0, 1, *(end + d for end in ends for d in (-1, 0, 1))}):
        path.write_bytes(whole[:length])
        complete = max(whole[:length].count(b"\n") - 1, 0)
        with opened(path) as part:
            taken = 10 if complete == 10 else complete // 4 * 4
            assert part.rows == rows(0, taken)
            part.add(rows(taken, 10 - taken))
        assert path.read_bytes() == whole


def test_rows_after_damage_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    write(path, 10)
    lines = path.read_bytes().split(b"\n")
    lines[6] = b"{damaged"
    path.write_bytes(b"\n".join(lines))
    with opened(path) as part:
        assert part.rows == rows(0, 4)


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"task": "other"}, "task"),
        ({"model": "other", "k": 2}, "k, model"),
        ({"more": 1}, "more"),
        (identity("task", "digest", {"k": 1}, [("a", 4)]), "images"),
    ],
)
def test_another_run_is_rejected(tmp_path: Path, changed: dict[str, Any], names: str) -> None:
    path = tmp_path / "x.part"
    write(path, 4)
    before = path.read_bytes()
    with pytest.raises(DataError, match=f"was written with different {names}; delete it, or"):
        opened(path, {**RUN, **changed})
    assert path.read_bytes() == before
    with opened(path, {**RUN, **changed}, resume=False) as part:
        assert part.rows == []


def test_a_foreign_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    path.write_text("hello\nworld\n")
    with pytest.raises(DataError, match="with different header"):
        opened(path)


def test_json_lines_and_parquet_hold_the_same(tmp_path: Path) -> None:
    lines, table = tmp_path / "x.jsonl", tmp_path / "x.parquet"
    for path in (lines, table):
        write_results(path, rows(0, 3), FIELDS)
    assert [json.loads(line) for line in lines.read_text().splitlines()] == rows(0, 3)
    read = pq.read_table(table)
    assert [str(t) for t in read.schema.types] == [
        "string", "list<element: int32>", "list<element: list<element: float>>",
    ]  # fmt: skip
    want = rows(0, 3)
    for row in want:
        row["boxes"] = [[pytest.approx(x, rel=1e-6) for x in box] for box in row["boxes"]]
    assert read.to_pylist() == want


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_a_failed_write_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("before")
    bad = [*rows(0, 2), {"image": object(), "ids": [], "boxes": []}]
    with pytest.raises((TypeError, pyarrow.ArrowException)):
        write_results(tmp_path / name, bad, FIELDS)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.csv", r"must end in .jsonl or .parquet"),
        ("no/x.jsonl", "no folder"),
    ],
)
def test_impossible_paths(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_results_path(tmp_path / name)


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(OptionError, match=r"no_such_thing is not installed.*pip install 'pillow>="):
        optional_module("no_such_thing.parquet", "eval")
