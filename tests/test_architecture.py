"""Imports between rooms point one way, late ones too; most rooms know no jax."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"op_lowering": ROOT / "op_lowering", "quant": ROOT / "quant"}

# A room is a folder of the package, or a module in its root. It may import from the rows above its
# own. docs/architecture.md says what each is for.
LAYERS = (
    ("errors", "lru_cache", "text", "version", "whole_imports"),
    ("options", "pjrt", "quant", "report"),
    ("kernels",),
    ("op_lowering",),
    ("measuring", "model", "reference"),
    ("passes", "custom", "digests"),
    ("plan",),
    ("lowering", "runtime"),
    ("xla",),
    ("cache",),
    ("tuning",),
    ("compile",),
    ("delegate",),
    ("function", "interpreter", "litert", "precompile"),
    ("analysis", "comparison", "evaluation", "providers", "sensitivity", "testing"),
    ("benchmark", "demo", "ray", "serve"),
    ("tools",),
    ("__init__", "__main__"),
)
# The same for the folders of op_lowering/; `rule` stands for its other modules.
OPERATOR_LAYERS = (
    ("spec",),
    ("options",),
    ("rule",),
    ("common",),
    ("quantized",),
    ("conv",),
    ("matmul",),
    ("builtin", "recurrent", "stablehlo"),
    ("fused",),
    ("registry",),
)
# Stock interpreters call a method of the delegate itself, which must find its way to the bridge.
UPWARDS = {("jaxdelegate.runtime.simple_delegate", "jaxdelegate.litert")}

# What of op_lowering/ imports no jax: all that the rooms below may have of it.
WORDS = ("options", "dtypes", "spec", "precision", "rule")
NO_JAX = (
    "analysis",
    "benchmark",
    "cache",
    "demo",
    "evaluation",
    "interpreter",
    "kernels",
    "litert",
    "measuring",
    "model",
    "options",
    "passes",
    "providers",
    "reference",
    "ray",
    "report",
    "runtime",
    "serve",
)
# In these rooms some modules are for jax: what they have to do with it is their purpose.
PARTLY = {
    "pjrt": ("client",),
    "quant": (),  # and its modules jax_*
    "comparison": ("precision_check",),
    "compile": ("compilation", "precision_policy"),
    "delegate": (),
}


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package and where it lies."""
    found = {}
    for path in (ROOT / "jaxdelegate").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[1] not in FOLDERS:
            found[".".join(parts)] = path
    for name, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            rest = path.relative_to(folder).with_suffix("").parts
            found[".".join(("jaxdelegate", name, *rest))] = path
    return {
        name.removesuffix(".__init__") if name.count(".") > 1 else name: path
        for name, path in found.items()
    }


@functools.cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports, at whatever depth, for types only, or by its name."""
    return _imported(ast.walk(ast.parse(path.read_text())))


def at_once(path: Path) -> set[str]:
    """The modules that importing a file imports."""
    return _imported(ast.parse(path.read_text()).body)


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (submodules & set(modules())) or {node.module}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return names


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def operator_room(module: str) -> str:
    name = module.split(".", maxsplit=3)[2]
    return name if any(name in row for row in OPERATOR_LAYERS) else "rule"


def layer(name: str, layers: tuple[tuple[str, ...], ...]) -> int:
    found = [n for n, row in enumerate(layers) if name in row]
    assert found, f"the room {name!r} is in no row"
    return found[0]


def test_imports_point_one_way() -> None:
    for module, path in modules().items():
        for name in imports(path):
            if name.split(".")[0] == "jaxdelegate" and (module, name) not in UPWARDS:
                assert is_below(name, module), f"{module} imports {name}"


def is_below(name: str, module: str) -> bool:
    """Whether a module is in the room of another one, or in a room below."""
    if room(module) == room(name) == "op_lowering" and min(module.count("."), name.count(".")) > 1:
        here, there, layers = operator_room(module), operator_room(name), OPERATOR_LAYERS
    else:
        here, there, layers = room(module), room(name), LAYERS
    return here == there or layer(there, layers) < layer(here, layers)


def test_modules_of_a_room_import_each_other_one_way() -> None:
    """No two modules import each other, whatever lies between them and however late."""
    graph = {
        module: {name for name in imports(path) if name in modules() and name != module}
        for module, path in modules().items()
    }
    for module, name in UPWARDS:
        graph[module].discard(name)
    packages = {module for module, path in modules().items() if path.name == "__init__.py"}
    left = {m: names - packages for m, names in graph.items() if m not in packages}
    while leaves := {module for module, names in left.items() if not names}:
        left = {m: names - leaves for m, names in left.items() if m not in leaves}
    assert left == {}


def test_these_rooms_know_no_jax() -> None:
    for module, path in modules().items():
        own, last = room(module), module.split(".")[-1]
        if own not in {*NO_JAX, *PARTLY} or last in PARTLY.get(own, ()) or last[:4] == "jax_":
            continue
        names = at_once(path)
        assert not [n for n in names if n == "jax" or n.startswith("jax.")], module
        if own not in PARTLY:
            rules = [n for n in names if n.startswith("jaxdelegate.op_lowering.")]
            assert {n for n in rules if n.split(".")[2] not in WORDS} == set(), module


def test_absl_flags_in_tools_only() -> None:
    users = {m for m, path in modules().items() if any(i[:4] == "absl" for i in imports(path))}
    assert {m for m in users if room(m) != "tools"} == set()


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


def test_every_room_has_a_contract() -> None:
    """A room says in the first line of its docstring what it is for."""
    for folder in (ROOT / "jaxdelegate", *FOLDERS.values()):
        for path in folder.rglob("__init__.py"):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert text.splitlines()[:1], f"{path} has no docstring"
            assert text.splitlines()[0].endswith("."), path


def test_operators_and_their_reference_lie_in_rooms_of_the_same_names() -> None:
    rooms = {p.parent.name for p in (ROOT / "op_lowering").glob("*/__init__.py")}
    twins = {p.parent.name for p in (ROOT / "jaxdelegate/reference").glob("*/__init__.py")}
    assert rooms - twins == {"fused", "options"}  # only rewrites make them; shared by both
    assert twins <= rooms
