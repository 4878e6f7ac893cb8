"""Imports between rooms, also late ones, point one way; most rooms do not import jax."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from jaxdelegate.op_lowering.families import FAMILIES, is_reference

ROOT = Path(__file__).parents[1]
FOLDERS = {"op_lowering": ROOT / "op_lowering", "quant": ROOT / "quant"}

# A room is a folder of the package, or a module in its root. It may import from the rows above its
# own. docs/architecture.md says what each is for.
LAYERS = (
    ("errors", "forks", "lru_cache", "text", "version", "waiting", "whole_imports", "wire"),
    ("device_errors", "not_built", "optional", "options", "protos", "quant"),
    ("pjrt",),
    ("host_memory", "report"),
    ("kernels",),
    ("op_lowering",),
    ("costs", "measuring", "model", "reference"),
    ("bundles", "passes", "custom", "digests"),
    ("simple_delegate",),
    ("plan", "thunks"),
    ("device_weights", "program"),
    ("memory_errors",),
    ("lowering", "runtime"),
    ("xla",),
    ("cache",),
    ("tuning",),
    ("compile",),
    ("delegate",),
    ("function", "interpreter", "litert", "precompile"),
    ("lm",),
    ("analysis", "comparison", "evaluation", "providers", "sensitivity", "testing"),
    ("benchmark", "conversion", "demo", "ray", "serve"),
    ("tools",),
    ("__init__", "__main__"),
)
# The columns of the data flow. Rooms below them are their only common leaves: compiled programs and
# weights on devices, for example.
COLUMNS = {
    "plan": ("plan",),
    "compile": ("lowering", "xla", "cache", "tuning", "compile"),
    "run": ("runtime",),
}
MAY_IMPORT = {("run", "plan")}  # a runner asks for its plan, and runs the steps of it
# Like `LAYERS`, for the folders of op_lowering/. `options` stands for the families' modules of that
# name and those that collect them, `rule` for the other modules outside of folders.
OPERATOR_LAYERS = (
    ("spec",),
    ("records",),
    ("options",),
    ("rule",),
    ("common",),
    (
        "cast",
        "convolution",
        "elementwise",
        "layout",
        "padding",
        "pooling",
        "random",
        "recurrent",
        "reduction",
        "resources",
        "shape",
        "signal",
        "slicing",
        "sparse",
        "stablehlo",
        "text",
    ),
    (
        "activation",
        "comparison",
        "custom",
        "indexing",
        "lookup",
        "matmul",
        "normalization",
        "resize",
        "segment",
        "sorting",
    ),
    ("detection", "fused"),
    ("flex",),
    ("control_flow",),
    ("registry",),
)
OPTIONS = ("options", "families")
# What the families' numpy kernels and jaxdelegate/reference/ may import of this package.
KERNELS_USE = ("spec", "dtypes", "records", "options")

# Modules of op_lowering/ without jax, the only ones that the rooms below may import.
WORDS = ("options", "dtypes", "spec", "precision", "records", "rule", "families")
NO_JAX = (
    "analysis",
    "benchmark",
    "bundles",
    "cache",
    "costs",
    "demo",
    "device_errors",
    "device_weights",
    "evaluation",
    "host_memory",
    "interpreter",
    "kernels",
    "litert",
    "measuring",
    "memory_errors",
    "model",
    "options",
    "passes",
    "plan",
    "program",
    "protos",
    "providers",
    "reference",
    "ray",
    "report",
    "runtime",
    "serve",
    "thunks",
)
# In these rooms some modules import jax because that is their purpose.
PARTLY = {
    "pjrt": ("client",),
    "quant": (),  # and its modules jax_*
    "comparison": ("precision_check",),
    "compile": ("compilation", "precision_policy"),
    "delegate": (),
}


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package and its file."""
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
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """The imports and calls in a file, at any depth."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return [node for node in ast.walk(parsed(path)) if isinstance(node, kinds)]


@functools.cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports, at any depth, only for types, or by name."""
    return _imported(nodes(path))


def at_once(path: Path) -> set[str]:
    """The modules that importing a file imports."""
    return _imported(parsed(path).body)


def called(node: ast.Call) -> str:
    """The name of a function, without its module; empty if it has none."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (submodules & modules().keys()) or {node.module}
        elif isinstance(node, ast.Call) and called(node) == "import_module":
            names |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return names


def room(module: str) -> str:
    if is_kernel(module):
        return "reference"
    return module.split(".")[1] if "." in module else "__init__"


def is_of_operators(module: str) -> bool:
    return module.split(".")[1:2] == ["op_lowering"]


def is_kernel(module: str) -> bool:
    """Whether it is a family's module of numpy kernels."""
    parts = module.split(".")
    return is_of_operators(module) and len(parts) == 4 and is_reference(parts[3])


def operator_room(module: str) -> str:
    parts = module.split(".")[2:]
    if parts[-1] in OPTIONS and len(parts) == 1 + (parts[0] in FAMILIES):
        return "options"
    return parts[0] if any(parts[0] in row for row in OPERATOR_LAYERS) else "rule"


def operator_word(module: str) -> str:
    """What a module of op_lowering/ is to the rooms that do not import jax."""
    return "options" if operator_room(module) == "options" else module.split(".")[2]


def layer(name: str, layers: tuple[tuple[str, ...], ...]) -> int:
    found = [n for n, row in enumerate(layers) if name in row]
    assert found, f"the room {name!r} is in no row"
    return found[0]


def test_imports_point_one_way() -> None:
    for module, path in modules().items():
        for name in imports(path):
            if name.split(".")[0] == "jaxdelegate":
                assert is_below(name, module), f"{module} imports {name}"


def test_columns_have_only_leaves_in_common() -> None:
    columns = {name: column for column, names in COLUMNS.items() for name in names}
    for module, path in modules().items():
        here = columns.get(room(module))
        others = {columns.get(room(name), here) for name in imports(path) if "." in name}
        assert here is None or all(
            other == here or (here, other) in MAY_IMPORT for other in others
        ), module


def is_below(name: str, module: str) -> bool:
    """Whether a module is in the room of another one, or in a room below."""
    if room(module) == room(name) and all(
        is_of_operators(m) and m.count(".") > 1 for m in (module, name)
    ):
        here, there, layers = operator_room(module), operator_room(name), OPERATOR_LAYERS
    else:
        here, there, layers = room(module), room(name), LAYERS
    return here == there or layer(there, layers) < layer(here, layers)


def test_modules_of_a_room_import_each_other_one_way() -> None:
    """There are no import cycles between modules, also with late imports."""
    graph = {
        module: {name for name in imports(path) if name in modules() and name != module}
        for module, path in modules().items()
    }
    packages = {module for module, path in modules().items() if path.name == "__init__.py"}
    left = {m: names - packages for m, names in graph.items() if m not in packages}
    while leaves := {module for module, names in left.items() if not names}:
        left = {m: names - leaves for m, names in left.items() if m not in leaves}
    assert left == {}


def test_these_rooms_do_not_import_jax() -> None:
    for module, path in modules().items():
        own, last = room(module), module.split(".")[-1]
        if own not in {*NO_JAX, *PARTLY} or last in PARTLY.get(own, ()) or last[:4] == "jax_":
            continue
        names = at_once(path)
        assert not [n for n in names if n == "jax" or n.startswith("jax.")], module
        if own not in PARTLY:
            rules = [n for n in names if n.startswith("jaxdelegate.op_lowering.")]
            used = {operator_word(n) for n in rules if not is_kernel(n)}
            assert used <= {*WORDS}, module


def test_numpy_kernels_use_options_and_the_arithmetic_of_integers_only() -> None:
    for module, path in modules().items():
        if room(module) != "reference":
            continue
        for name in imports(path):
            package, *rest = name.split(".")
            assert package != "jax", module
            if package == "jaxdelegate" and room(name) != "reference":
                is_quant = rest[0] == "quant" and not rest[-1].startswith("jax_")
                is_word = rest[0] == "op_lowering" and operator_word(name) in KERNELS_USE
                is_known = is_quant or is_word or rest[0] in ("optional", "wire")
                assert is_known, f"{module} imports {name}"


def test_a_family_is_one_folder() -> None:
    folders = {p.parent for p in (ROOT / "op_lowering").glob("*/__init__.py")}
    assert {folder.name for folder in folders} == {*FAMILIES, "common", "records"}
    for folder in folders:
        body = ast.parse((folder / "__init__.py").read_text()).body
        assert len(body) == 1, f"{folder}/__init__.py is more than a docstring"
        names = {path.stem for path in folder.glob("*.py")}
        if folder.name in FAMILIES:
            assert "options" in names, folder
            assert any(map(is_reference, names)) == (folder.name != "fused"), folder


def test_tests_of_operators_are_in_folders_of_the_same_names() -> None:
    folders = {p.parent.name for p in (ROOT / "tests" / "op_lowering").glob("*/test_*.py")}
    assert folders <= {*FAMILIES, "common"}


def test_the_package_imports_nothing_of_the_checkout_around_it() -> None:
    for module, path in modules().items():
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & {"bench", "docs", "examples", "tests"}, module


def test_absl_flags_in_tools_only() -> None:
    users = {m for m, path in modules().items() if any(i[:4] == "absl" for i in imports(path))}
    assert {m for m in users if room(m) != "tools"} == set()


WITHOUT_JAX = (
    "import jaxdelegate",
    "from jaxdelegate.op_lowering.families import option_modules; [*option_modules()]",
    "import jaxdelegate; jaxdelegate.reference.KERNELS",
    "from jaxdelegate.op_lowering.families import reference_modules; [*reference_modules()]",
    "from jaxdelegate.interpreter import Interpreter",
    "import jaxdelegate; jaxdelegate.Interpreter, jaxdelegate.DelegateOptions",
)


def test_these_statements_do_not_import_jax() -> None:
    """One after the other in a process."""
    checked = (f"{line}\nassert 'jax' not in sys.modules, {line!r}" for line in WITHOUT_JAX)
    code = "\n".join(("import sys", *checked))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_every_room_has_a_contract() -> None:
    """The first line of its docstring."""
    for folder in (ROOT / "jaxdelegate", *FOLDERS.values()):
        for path in folder.rglob("__init__.py"):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert text.splitlines()[:1], f"{path} has no docstring"
            assert text.splitlines()[0].endswith("."), path


def test_functions_need_no_delegate_and_no_runner() -> None:
    """Planning is plan/'s and compiling compile/'s: neither takes a runner."""
    runners = {"jaxdelegate.delegate.jax_delegate", "jaxdelegate.runtime.subgraph"}
    for module, path in modules().items():
        if room(module) == "function":
            assert not {n for n in imports(path) if n.startswith(tuple(runners))}, module


_VARIADIC = ("table", "first_reason")  # of any number of things of one kind


def test_long_calls_name_their_arguments() -> None:
    """No reader can check the seventh positional argument by eye."""
    for module, path in modules().items():
        for node in nodes(path):
            if isinstance(node, ast.Call) and called(node) not in _VARIADIC:
                positional = [a for a in node.args if not isinstance(a, ast.Starred)]
                assert len(positional) <= 6, f"{module}:{node.lineno}"
