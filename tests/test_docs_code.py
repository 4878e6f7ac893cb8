"""The Python code of these pages runs, in the order of each page, next to a model.tflite."""

import re
import warnings
from pathlib import Path

import pytest

from jaxdelegate.testing.networks import small_classifier

ROOT = Path(__file__).parents[1]
PAGES = ("docs/index.md", "docs/jax.md", "docs/migration.md", "docs/options.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.tflite").write_bytes(small_classifier())
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert blocks
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            exec(compile(block, page, "exec"), names)
