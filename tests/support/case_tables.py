"""The operators' case tables, for tests that walk over all of them."""

import functools
import importlib
from pathlib import Path
from types import ModuleType

from jaxdelegate.testing.case import Case

_ROOT = Path(__file__).parents[2]
_TABLES = ("CASES", "LOWERED")


@functools.cache
def cases_in(folder: Path, tables: tuple[str, ...] = _TABLES) -> dict[str, list[Case]]:
    """By operator, the cases in these tables of all modules."""
    found: dict[str, list[Case]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        module = _imported(path)
        for table in tables:
            for case in getattr(module, table, ()):
                if isinstance(case, Case):
                    found.setdefault(case.name, []).append(case)
    return found


def _imported(path: Path) -> ModuleType:
    """By the name that pytest gives it, so that what it has collected is not executed again."""
    return importlib.import_module(".".join(path.relative_to(_ROOT).with_suffix("").parts))


def is_quantized(case: Case) -> bool:
    """Whether one of the case's tensors has a scale."""
    given = [a.quantization for a in case.inputs if a is not None]
    return any(q is not None for q in (*given, *(case.output_quantization or ())))
