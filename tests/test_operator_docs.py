"""docs/operators.md says what the registry holds."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_operator_table_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate_operators.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / "operators.md").read_text()
    assert written == module.generate(), "run `python docs/generate_operators.py`"
