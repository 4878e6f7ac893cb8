"""Every command of every page: `jaxdelegate` ones run or are parsed, others are known."""

import re
import shlex
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from jaxdelegate.tools.main import TOOLS, main
from tests.support.bundles import litertlm, parts

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    \$ (.*)$", re.MULTILINE)  # a command above its output
# Tools whose commands run here, next to a model.tflite: those that take less than a second.
QUICK = ("analyze", "bisect", "cache", "check_precision", "compile", "inference_diff")
# Those of their commands that name missing files.
PARSED_ONLY = {
    "--input_layer_value_files=x:x.npy": "the reader's own array",
    "--input_layer=image": "shapes of the reader's own model",
    "gemma.litertlm --prompt": "needs LiteRT-LM; tests/comparison/test_language_models.py",
    "--require_full_delegation --result_json=analysis.json": "the same command runs on its page",
}
# Other commands on pages, and why they do not run here.
OTHERS = {
    "pip install": "the network",
    "git clone": "the network",
    "python3 -m venv": "makes an environment",
    ". .venv/bin/activate": "the shell",
    "export XLA_FLAGS=": "a setting of JAX; tests/test_sharding.py makes it",
    "nox -s device_gates": "compilers of gigabytes",
    "curl localhost:8000": "a running server; tests/serve/test_clients.py sends the same",
    "JAXDELEGATE_SERVE_MODELS=": "a running server; tests/serve/test_process.py starts it",
    "perf_analyzer -m": "of another package; tests/serve/test_clients.py sends the same",
    "nvidia-smi": "needs an NVIDIA driver",
    "docker ": "needs Docker",
    "model-explorer": "a package of half a gigabyte",
    'python -c "import jax': "takes as long as importing jax",
}


def commands() -> Iterator[tuple[str, str]]:
    """Pages with their command lines, continued lines joined."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        found = "".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
        for line in [*found, *INDENTED.findall(text)]:
            for command in line.split("&&"):
                if command.strip() and not command.lstrip().startswith("#"):
                    yield path.relative_to(ROOT).as_posix(), command.strip()


def is_tool(command: str) -> bool:
    return re.match(r"(\w+=\S+ )*jaxdelegate ", command) is not None


def arguments(command: str) -> list[str]:
    """The arguments of the tool, without environment, comment and pipe."""
    words = shlex.split(command.partition(" | ")[0], comments=True)
    return words[words.index("jaxdelegate") + 1 :]


def meaning(command: str) -> str:
    """Equal for two spellings of a command."""
    return " ".join(arguments(command)).replace("--graph=", "")


TOOL_COMMANDS = {meaning(c): c for _, c in commands() if is_tool(c)}


def is_run(command: str) -> bool:
    named_elsewhere = any(part in command for part in PARSED_ONLY)
    return arguments(command)[0] in QUICK and not named_elsewhere


@pytest.fixture(scope="module")
def _folder(classifier: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with the model, under the names that pages use, and programs."""
    folder = tmp_path_factory.mktemp("commands")
    for name in ("model", "quantized", "float"):
        (folder / f"{name}.tflite").write_bytes(classifier)
    (folder / "gemma.litertlm").write_bytes(litertlm(parts()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["compile", "model.tflite", "--jax_serialization_dir=programs"]) == 0
        yield


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("command", [c for c in TOOL_COMMANDS.values() if is_run(c)])
def test_a_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(arguments(command))
    assert code == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", [c for c in TOOL_COMMANDS.values() if not is_run(c)])
def test_a_command_is_parsed(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = arguments(command)[0]
    if tool in TOOLS:
        monkeypatch.setattr(import_module(f"jaxdelegate.tools.{tool}"), "run", lambda *_: 0)
    code = main(arguments(command))
    assert code == 0, capsys.readouterr().err


def _script(command: str) -> bool:
    found = re.match(r"(?:NPROC=1 taskset -c \S+ )?python (\S+\.py)", command)
    return found is not None and (ROOT / found[1]).is_file()


def _module(command: str) -> bool:
    found = re.match(r"python -m (tests[\w.]+)", command)
    return found is not None and ROOT.joinpath(*found[1].split(".")).with_suffix(".py").is_file()


def _target(command: str) -> bool:
    found = re.match(r"make (\S+)", command)
    makefile = (ROOT / "Makefile").read_text()
    return found is not None and re.search(rf"^{found[1]}:", makefile, re.MULTILINE) is not None


def _pytest(command: str) -> bool:
    found = re.match(r"\.venv/bin/python -m pytest (\S+)", command)
    return found is not None and (ROOT / found[1]).exists()


CHECKS: tuple[Callable[[str], bool], ...] = (_script, _module, _target, _pytest)


@pytest.mark.parametrize(
    ("page", "command"), [(p, c) for p, c in commands() if not is_tool(c)], ids=str
)
def test_another_command_is_known(page: str, command: str) -> None:
    is_excepted = any(command.startswith(other) for other in OTHERS)
    is_setting = re.match(r"cd \w+$|\w+=\S+ pip install", command) is not None
    assert is_excepted or is_setting or any(check(command) for check in CHECKS), page


def test_each_exception_is_needed() -> None:
    every = [c for _, c in commands()]
    assert [o for o in OTHERS if not any(c.startswith(o) for c in every)] == []
    assert [part for part in PARSED_ONLY if not any(part in c for c in every)] == []
