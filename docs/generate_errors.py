"""Write docs/errors.md: the errors for wrong uses, by running tests/errors/wrong_uses.py."""

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
HEAD = """# Errors

For anyone who got an error message and wants to know its cause. Search this page for a few words of
it. All errors that jaxdelegate raises on purpose inherit `jaxdelegate.JaxDelegateError` and the
builtin error that stock interpreters raise in the same place; a command prints one line and exits
with 1.

Each entry shows the code and its error. `python docs/generate_errors.py` writes the page from the
tests, on a machine whose only device is a CPU.
"""


def load() -> ModuleType:
    """The list of wrong uses."""
    path = ROOT / "tests" / "errors" / "wrong_uses.py"
    spec = importlib.util.spec_from_file_location("wrong_uses", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page() -> str:
    """The page."""
    uses = load()
    lines = [HEAD]
    with tempfile.TemporaryDirectory() as folder, uses.inside(Path(folder)):
        for area, rows in uses.WRONG_USES.items():
            lines.append(f"## {area}\n")
            for row in rows:
                kind, message = uses.answer(row)
                lines += [f"**{row.what[0].upper()}{row.what[1:]}**\n", _block(row, kind, message)]
    return "\n".join(lines)


def _block(row: object, kind: str, message: str) -> str:
    """The code, followed by its error."""
    code: str = row.code  # type: ignore[attr-defined]
    if code.startswith("$ "):
        return f"```text\n{code}\n{message}\n```\n"
    body = code.replace("; ", "\n")
    return f"```python\n{body}\n```\n\n```text\n{kind}: {message}\n```\n"


if __name__ == "__main__":
    (ROOT / "docs" / "errors.md").write_text(page())
