"""docs/architecture.md has every room, in order; the functions of docs/design/walks.md exist."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = (ROOT / "docs" / "design" / "walks.md").read_text()
LAYERS = runpy.run_path(str(ROOT / "tests" / "test_architecture.py"))["LAYERS"]


def test_rooms_are_listed_in_their_order() -> None:
    table = PAGE.split("## Data flow")[1].split("## An operator")[0]
    listed = re.findall(r"^\| `(\w+)(?:\.py|/)`(?:, `(\w+)\.py`)? \|", table, re.MULTILINE)
    assert [name for row in listed for name in row if name] == [n for row in LAYERS for n in row]


def test_functions_of_the_walks_exist() -> None:
    rows = re.findall(r"^\| (?:`[^`]+`)? ?\| `([\w/]+\.py)` \| `([\w.]+)` \|", WALKS, re.MULTILINE)
    assert len(rows) > 20
    for file, function in rows:
        path = ROOT / file if file.startswith("op_lowering") else ROOT / "jaxdelegate" / file
        assert f"def {function.rsplit('.', maxsplit=1)[-1]}(" in path.read_text(), (file, function)
