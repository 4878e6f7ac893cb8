"""Imports point one way, and importing the reference does not load jax."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"op_lowering": ROOT / "op_lowering", "quant": ROOT / "quant"}

NUMBERS = ("jaxdelegate.quant",)
WORDS = (
    "jaxdelegate.op_lowering.options",
    "jaxdelegate.op_lowering.dtypes",
    "jaxdelegate.op_lowering.spec",
)
RECORD = ("jaxdelegate.model", "jaxdelegate.errors", *WORDS, *NUMBERS)

# Room -> what it may import from this package. Of several prefixes the longest one counts.
ALLOWED: dict[str, tuple[str, ...]] = {
    "jaxdelegate.errors": (),
    "jaxdelegate.version": (),
    "jaxdelegate.quant": NUMBERS,
    "jaxdelegate.op_lowering.options": ("jaxdelegate.op_lowering.options",),
    "jaxdelegate.op_lowering.dtypes": WORDS,
    "jaxdelegate.op_lowering.spec": (*WORDS, *NUMBERS),
    "jaxdelegate.kernels": ("jaxdelegate.kernels", "jaxdelegate.processor", "jaxdelegate.runtime"),
    "jaxdelegate.runtime": ("jaxdelegate.op_lowering.spec",),
    "jaxdelegate.program": ("jaxdelegate.op_lowering.spec", "jaxdelegate.runtime"),
    "jaxdelegate.jax_settings": (),
    "jaxdelegate.platforms": (),
    "jaxdelegate.op_lowering": (
        "jaxdelegate.kernels",
        "jaxdelegate.op_lowering",
        *NUMBERS,
    ),
    "jaxdelegate.model": (*RECORD, "jaxdelegate.reading"),
    "jaxdelegate.reading": ("jaxdelegate.errors", *WORDS, *NUMBERS),
    "jaxdelegate.reference": (
        "jaxdelegate.reference",
        *WORDS,
        *NUMBERS,
    ),
    "jaxdelegate.report": ("jaxdelegate.report",),
    "jaxdelegate.report.plots": ("jaxdelegate.errors",),
    "jaxdelegate.comparison": (
        *RECORD,
        "jaxdelegate.details",
        "jaxdelegate.host",
        "jaxdelegate.interpreter",
        "jaxdelegate.model_inputs",
        "jaxdelegate.passes",
        "jaxdelegate.protos",
        "jaxdelegate.report.json_records",
        "jaxdelegate.simple_delegate",
        "jaxdelegate.stats",
        "jaxdelegate.testing.tolerance",
        "jaxdelegate.version",
    ),
    "jaxdelegate.analysis.cost_rules": WORDS,
    "jaxdelegate.analysis.costs": ("jaxdelegate.analysis.cost_rules", *WORDS),
    "jaxdelegate.analysis": (
        *RECORD,
        "jaxdelegate.delegate",
        "jaxdelegate.host",
        "jaxdelegate.options",
        "jaxdelegate.partition",
        "jaxdelegate.passes",
        "jaxdelegate.plan",
        "jaxdelegate.reading.operator_tables",
        "jaxdelegate.reading.source",
        "jaxdelegate.report.delegation",
        "jaxdelegate.report.json_records",
        "jaxdelegate.simple_delegate",
        "jaxdelegate.version",
    ),
    "jaxdelegate.model_inputs": ("jaxdelegate.errors",),
    "jaxdelegate.partition": (),
    "jaxdelegate.protos": (),
    "jaxdelegate.stats": (),
    "jaxdelegate.options": ("jaxdelegate.errors",),
    "jaxdelegate.passes": (*RECORD, "jaxdelegate.reference"),
    "jaxdelegate.simple_delegate": (*RECORD, "jaxdelegate.report"),
    "jaxdelegate.choice": (
        *RECORD,
        "jaxdelegate.partition",
        "jaxdelegate.report",
        "jaxdelegate.simple_delegate",
    ),
    "jaxdelegate.lowered_partition": (
        *RECORD,
        "jaxdelegate.float_view",
        "jaxdelegate.op_lowering",
        "jaxdelegate.reduced_view",
    ),
    "jaxdelegate.lowering": (
        *RECORD,
        "jaxdelegate.float_view",
        "jaxdelegate.lowered_partition",
        "jaxdelegate.op_lowering",
        "jaxdelegate.passes",
        "jaxdelegate.reduced_view",
        "jaxdelegate.rewrites",
        "jaxdelegate.sharing",
        "jaxdelegate.states",
    ),
    "jaxdelegate.reduced_view": (*RECORD, "jaxdelegate.op_lowering"),
    "jaxdelegate.precision_choice": ("jaxdelegate.op_lowering.precision", "jaxdelegate.options"),
    "jaxdelegate.side_by_side": (
        *RECORD,
        "jaxdelegate.lowered_partition",
        "jaxdelegate.op_lowering.precision",
        "jaxdelegate.report.precision",
    ),
    "jaxdelegate.precision_check": (
        *RECORD,
        "jaxdelegate.delegate",
        "jaxdelegate.function",
        "jaxdelegate.interpreter",
        "jaxdelegate.jax_kernel",
        "jaxdelegate.op_lowering.precision",
        "jaxdelegate.options",
        "jaxdelegate.precision_choice",
        "jaxdelegate.reduced_view",
        "jaxdelegate.report.precision",
        "jaxdelegate.side_by_side",
        "jaxdelegate.simple_delegate",
    ),
    "jaxdelegate.compiler": (
        *RECORD,
        "jaxdelegate.jax_private",
        "jaxdelegate.lowered_partition",
        "jaxdelegate.program",
        "jaxdelegate.runtime",
        "jaxdelegate.xla_options",
    ),
    "jaxdelegate.kernel_chains": ("jaxdelegate.jax_private", "jaxdelegate.kernels"),
    "jaxdelegate.processor": ("jaxdelegate.errors",),
    "jaxdelegate.xla_options": ("jaxdelegate.processor",),
    "jaxdelegate.sharing": RECORD,
    "jaxdelegate.batching": (*RECORD, "jaxdelegate.passes"),
    "jaxdelegate.float_view": RECORD,
    "jaxdelegate.jax_private": (),
    "jaxdelegate.digests": ("jaxdelegate.errors", "jaxdelegate.reading"),
    "jaxdelegate.cache": (
        *RECORD,
        "jaxdelegate.digests",
        "jaxdelegate.jax_settings",
        "jaxdelegate.kernels",
        "jaxdelegate.op_lowering",
        "jaxdelegate.program",
        "jaxdelegate.runtime",
        "jaxdelegate.processor",
        "jaxdelegate.report.tuning",
        "jaxdelegate.simple_delegate",
        "jaxdelegate.xla_options",
    ),
    "jaxdelegate.tuning": (
        *RECORD,
        "jaxdelegate.analysis.costs",
        "jaxdelegate.compiler",
        "jaxdelegate.lowered_partition",
        "jaxdelegate.lowering",
        "jaxdelegate.program",
        "jaxdelegate.runtime",
        "jaxdelegate.op_lowering",
        "jaxdelegate.passes",
        "jaxdelegate.report.tuning",
        "jaxdelegate.side_by_side",
        "jaxdelegate.testing.tolerance",
        "jaxdelegate.tuner",
    ),
    "jaxdelegate.tuner": (
        "jaxdelegate.cache.choices",
        "jaxdelegate.lowered_partition",
        "jaxdelegate.op_lowering.rule",
        "jaxdelegate.options",
        "jaxdelegate.report.tuning",
    ),
    "jaxdelegate.precompile": (
        *RECORD,
        "jaxdelegate.delegate",
        "jaxdelegate.host",
        "jaxdelegate.reading",
    ),
    "jaxdelegate.compilation": (
        *RECORD,
        "jaxdelegate.batching",
        "jaxdelegate.compiler",
        "jaxdelegate.lowered_partition",
        "jaxdelegate.lowering",
        "jaxdelegate.op_lowering",
        "jaxdelegate.program",
        "jaxdelegate.side_by_side",
        "jaxdelegate.simple_delegate",
        "jaxdelegate.tuner",
    ),
    "jaxdelegate.delegate": (
        *RECORD,
        "jaxdelegate.cache",
        "jaxdelegate.compilation",
        "jaxdelegate.jax_kernel",
        "jaxdelegate.jax_settings",
        "jaxdelegate.kernels",
        "jaxdelegate.op_lowering",
        "jaxdelegate.options",
        "jaxdelegate.platforms",
        "jaxdelegate.precision_choice",
        "jaxdelegate.processor",
        "jaxdelegate.program",
        "jaxdelegate.report",
        "jaxdelegate.rewrites",
        "jaxdelegate.runtime",
        "jaxdelegate.simple_delegate",
        "jaxdelegate.tuner",
        "jaxdelegate.xla_options",
    ),
    "jaxdelegate.states": (*RECORD, "jaxdelegate.reference"),
    "jaxdelegate.list_updates": RECORD,
    "jaxdelegate.rewrites": (
        *RECORD,
        "jaxdelegate.passes",
        "jaxdelegate.rewrites",
    ),
    "jaxdelegate.plan": (
        *RECORD,
        "jaxdelegate.choice",
        "jaxdelegate.passes",
        "jaxdelegate.reference",
        "jaxdelegate.report",
        "jaxdelegate.simple_delegate",
    ),
    "jaxdelegate.buffers": (),
    "jaxdelegate.jax_kernel": (
        *RECORD,
        "jaxdelegate.cache.partition_key",
        "jaxdelegate.delegate",
        "jaxdelegate.program",
        "jaxdelegate.runtime",
        "jaxdelegate.simple_delegate",
    ),
    "jaxdelegate.stored_start": (
        *RECORD,
        "jaxdelegate.buffers",
        "jaxdelegate.cache.starts",
        "jaxdelegate.delegate",
        "jaxdelegate.host",
        "jaxdelegate.jax_kernel",
        "jaxdelegate.program",
        "jaxdelegate.runtime",
        "jaxdelegate.simple_delegate",
    ),
    "jaxdelegate.signature_runner": ("jaxdelegate.interpreter", "jaxdelegate.model"),
    "jaxdelegate.host": (
        *RECORD,
        "jaxdelegate.buffers",
        "jaxdelegate.reading.source",
        "jaxdelegate.choice",
        "jaxdelegate.list_updates",
        "jaxdelegate.partition",
        "jaxdelegate.passes",
        "jaxdelegate.plan",
        "jaxdelegate.reference",
        "jaxdelegate.report",
        "jaxdelegate.simple_delegate",
        "jaxdelegate.states",
    ),
    "jaxdelegate.flag_values": ("jaxdelegate.errors",),
    "jaxdelegate.builtin_providers": (
        "jaxdelegate.errors",
        "jaxdelegate.flag_values",
        "jaxdelegate.options",
    ),
    "jaxdelegate.providers": (
        "jaxdelegate.builtin_providers",
        "jaxdelegate.errors",
        "jaxdelegate.flag_values",
        "jaxdelegate.simple_delegate",
    ),
    "jaxdelegate.benchmark": (
        *RECORD,
        "jaxdelegate.analysis.costs",
        "jaxdelegate.flag_values",
        "jaxdelegate.interpreter",
        "jaxdelegate.kernels.call_times",
        "jaxdelegate.model_inputs",
        "jaxdelegate.plan",
        "jaxdelegate.protos",
        "jaxdelegate.providers",
        "jaxdelegate.report.json_records",
        "jaxdelegate.simple_delegate",
        "jaxdelegate.stats",
        "jaxdelegate.xla_options",
    ),
    "jaxdelegate.custom": (*WORDS, "jaxdelegate.op_lowering", "jaxdelegate.reference"),
    "jaxdelegate.details": RECORD,
    "jaxdelegate.interpreter": (
        *RECORD,
        "jaxdelegate.signature_runner",
        "jaxdelegate.stored_start",
        "jaxdelegate.details",
        "jaxdelegate.host",
        "jaxdelegate.reading.source",
        "jaxdelegate.simple_delegate",
    ),
    "jaxdelegate.function": (
        *RECORD,
        "jaxdelegate.batching",
        "jaxdelegate.compiler",
        "jaxdelegate.lowered_partition",
        "jaxdelegate.lowering",
        "jaxdelegate.delegate",
        "jaxdelegate.program",
        "jaxdelegate.runtime",
        "jaxdelegate.host",
        "jaxdelegate.list_updates",
        "jaxdelegate.states",
    ),
    "jaxdelegate.litert": (
        *RECORD,
        "jaxdelegate.choice",
        "jaxdelegate.partition",
        "jaxdelegate.passes",
        "jaxdelegate.plan",
        "jaxdelegate.reading",
        "jaxdelegate.reference",
        "jaxdelegate.report",
        "jaxdelegate.simple_delegate",
    ),
    "jaxdelegate.evaluation": (
        "jaxdelegate.errors",
        "jaxdelegate.interpreter",
        "jaxdelegate.protos",
        "jaxdelegate.stats",
        "jaxdelegate.version",
    ),
    "jaxdelegate.testing": (
        *RECORD,
        "jaxdelegate.delegate",
        "jaxdelegate.interpreter",
        "jaxdelegate.op_lowering.rule",
        "jaxdelegate.passes",
        "jaxdelegate.reference",
        "jaxdelegate.simple_delegate",
        "jaxdelegate.testing",
    ),
}
ABOVE_ALL = (
    "jaxdelegate.tools",
    "jaxdelegate.demo",
    "jaxdelegate.__main__",
    "jaxdelegate.__init__",
)
NO_JAX = (
    "jaxdelegate.analysis.cost_rules",
    "jaxdelegate.analysis.costs",
    "jaxdelegate.quant",
    "jaxdelegate.model",
    "jaxdelegate.model_inputs",
    "jaxdelegate.protos",
    "jaxdelegate.stats",
    "jaxdelegate.reading",
    "jaxdelegate.reference",
    "jaxdelegate.passes",
    "jaxdelegate.partition",
    "jaxdelegate.choice",
    "jaxdelegate.digests",
    "jaxdelegate.plan",
    "jaxdelegate.host",
    "jaxdelegate.interpreter",
    "jaxdelegate.litert",
    "jaxdelegate.simple_delegate",
    "jaxdelegate.report",
    "jaxdelegate.comparison",
    "jaxdelegate.options",
    "jaxdelegate.flag_values",
    "jaxdelegate.builtin_providers",
    "jaxdelegate.providers",
    "jaxdelegate.benchmark",
    "jaxdelegate.evaluation",
    "jaxdelegate.op_lowering.options",
    "jaxdelegate.op_lowering.rule",
    "jaxdelegate.op_lowering.spec",
)


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "jaxdelegate").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[1:2] not in [(name,) for name in FOLDERS]:
            found[".".join(parts)] = path
    for name, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            rest = path.relative_to(folder).with_suffix("").parts
            found[".".join(("jaxdelegate", name, *rest))] = path
    return {
        name.removesuffix(".__init__") if name.count(".") > 1 else name: p
        for name, p in found.items()
    }


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Every module that the file imports at its top level."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (submodules & set(MODULES)) or {node.module}
    return names


def is_in(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def room_of(module: str) -> str | None:
    rooms = [room for room in ALLOWED if is_in(module, (room,))]
    return max(rooms, key=len, default=None)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_one_way(module: str) -> None:
    if is_in(module, ABOVE_ALL):
        return
    room = room_of(module)
    assert room is not None, f"{module} stands in no room of this test's table"
    allowed = (*ALLOWED[room], room)
    ours = {name for name in imports(MODULES[module]) if is_in(name, ("jaxdelegate",))}
    assert {name for name in ours if not is_in(name, allowed)} == set()


@pytest.mark.parametrize(
    "module", sorted(m for m in MODULES if is_in(m, NO_JAX) and "jax_" not in m)
)
def test_these_rooms_know_no_jax(module: str) -> None:
    assert {
        name for name in imports(MODULES[module]) if name.split(".")[0] in ("jax", "jaxlib")
    } == set()


def test_absl_flags_in_tools_only() -> None:
    users = {m for m, path in MODULES.items() if any(i.startswith("absl") for i in imports(path))}
    assert {m for m in users if not is_in(m, ("jaxdelegate.tools",))} == set()


@pytest.mark.parametrize(
    "statement",
    [
        "import jaxdelegate",
        "import jaxdelegate; jaxdelegate.reference.KERNELS",
        "from jaxdelegate.interpreter import Interpreter",
        "import jaxdelegate; jaxdelegate.Interpreter, jaxdelegate.DelegateOptions",
    ],
)
def test_does_not_import_jax(statement: str) -> None:
    code = f"import sys; {statement}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_file_is_a_god_file() -> None:
    long = {m: n for m, path in MODULES.items() if (n := len(path.read_text().splitlines())) > 500}
    assert long == {}
