"""The Python code of docs/ray.md runs, in order, next to a model.tflite."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def test_the_code_of_the_page_runs(
    classifier: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.tflite").write_bytes(classifier)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    blocks = BLOCK.findall((ROOT / "docs" / "ray.md").read_text())
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "docs/ray.md", "exec"), names)
    row = names["predicted"].take(1)[0]  # type: ignore[attr-defined]
    assert (row["probabilities"].shape, row["probabilities"].dtype) == ((32,), np.float32)
    assert list((tmp_path / "programs").glob("*.program"))
