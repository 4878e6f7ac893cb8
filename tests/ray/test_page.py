"""The Python code of docs/ray.md runs, in order, next to a model.tflite and a model.litertlm."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.language_models import language_bundle

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def test_the_code_of_the_page_runs(
    classifier: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.tflite").write_bytes(classifier)
    (tmp_path / "model.litertlm").write_bytes(language_bundle())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    blocks = BLOCK.findall((ROOT / "docs" / "ray.md").read_text())
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/ray.md", "exec"), names)
    row = names["predicted"].take(1)[0]  # type: ignore[attr-defined]
    assert (row["probabilities"].shape, row["probabilities"].dtype) == ((32,), np.float32)
    rows = names["answered"].take_all()  # type: ignore[attr-defined]
    assert sorted(row["id"] for row in rows) == list(range(50))
    assert all(0 < row["num_generated_tokens"] <= 8 for row in rows)
    assert list((tmp_path / "programs").glob("*.program"))
