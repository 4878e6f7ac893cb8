"""docs/from_jax.md has the current table; the room's size and what importing the package costs."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_is_current() -> None:
    path = ROOT / "docs" / "generate_from_jax.py"
    spec = importlib.util.spec_from_file_location("generate_from_jax", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "from_jax.md").read_text()
    assert page == module.page(), "run `python docs/generate_from_jax.py`"


def test_importing_the_package_does_not_import_the_room() -> None:
    code = "import sys, jaxdelegate; print([m for m in sys.modules if 'conversion' in m])"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert result.stdout.strip() == "[]"
