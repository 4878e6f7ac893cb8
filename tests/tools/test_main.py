"""The console script."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tqdm import tqdm

import jaxdelegate as jd
from jaxdelegate.cache.directory import default_folder
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.options import CustomOptions
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers.builtin import aliases
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools import command_line, terminal
from jaxdelegate.tools.main import TOOLS, main

WITHOUT_A_MODEL = {"cache", "demo"}


def test_usage_lists_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    rows = [row for row in printed.splitlines() if row.startswith("  ") and row[2] != " "]
    assert [row.split()[0] for row in rows] == list(TOOLS)
    assert len({row.index(what[:30]) for row, what in zip(rows, TOOLS.values(), strict=True)}) == 1


def test_without_a_tool_the_usage_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "usage: jaxdelegate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demmo"], "unknown tool 'demmo'; did you mean 'demo'?"),
        (["xyz"], f"unknown tool 'xyz'; tools: {', '.join(TOOLS)}"),
        (["demo", "--sise=32"], "Unknown command line flag 'sise'. Did you mean: size ?"),
        (["demo", "--nohelp=32"], "--nohelp=32 does not take an argument"),
        (["demo", "--size=1"], "size"),
        (["demo", "model.tflite"], "unexpected argument 'model.tflite'; flags begin with --"),
        (["analyze", "a", "b"], "unexpected argument 'b'; flags begin with --"),
        (["analyze", "absent.tflite", "--interpreter=litert"], "Could not open 'absent.tflite'"),
        (["analyze", "--interpreter=litert", "absent.tflite"], "Could not open 'absent.tflite'"),
        (["analyze", "--interpreter", "litert", "absent.tflite"], "Could not open 'absent.tflite'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_a_long_mistake_is_wrapped_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = "a_tool_that_is_not_known"
    assert main([unknown]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) > 100
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main([unknown]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 100
    assert " ".join(map(str.strip, lines)) == line


@pytest.mark.parametrize("tool", list(TOOLS))
def test_every_tool_shows_all_its_flags(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tool, "--helpfull"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"jaxdelegate {tool}: {TOOLS[tool]}\n\nusage: jaxdelegate {tool}")
    assert "jaxdelegate.tools" not in printed  # users do not need it
    headings = re.findall(r"^Flags.*:$", printed, re.MULTILINE)
    assert headings[0] == "Flags:"
    assert headings[-1] == "Flags of all tools:"
    flags = re.findall(r"^  (?:-h,)?--(?:\[no\])?(\w+):", printed, re.MULTILINE)
    assert len(flags) == len(set(flags))
    assert "help" in flags
    assert ("graph" in flags) == ("model_file" in flags) == (tool not in WITHOUT_A_MODEL)


@pytest.mark.parametrize("tool", list(TOOLS))
def test_help_is_short_and_names_the_rest(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tool, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"jaxdelegate {tool}: {TOOLS[tool]}\n\nusage: jaxdelegate {tool}")
    assert (" MODEL [--flags]" in printed) == (tool not in WITHOUT_A_MODEL)
    lines = printed.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    if "Flags of all tools:" not in printed:
        assert re.fullmatch(rf"\d+ more flags: jaxdelegate {tool} --helpfull", lines[-1])


def test_the_version_names_what_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"jaxdelegate {jd.__version__} (jax {jax.__version__}, ")


def test_the_model_needs_no_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(mobilenet_v1(size=32, width=0.25))
    assert main(["analyze", str(path)]) == 0
    named = capsys.readouterr().out
    assert main(["analyze", f"--graph={path}"]) == 0
    assert capsys.readouterr().out == named
    assert main(["analyze", str(path), f"--graph={path}"]) == 1
    assert "give one .tflite file, got 2" in capsys.readouterr().err
    assert main(["analyze", str(path), "b.tflite"]) == 1
    assert "unexpected argument 'b.tflite'" in capsys.readouterr().err


@pytest.mark.parametrize("tool", sorted(set(TOOLS) - WITHOUT_A_MODEL))
def test_both_names_of_the_model(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"compile": [f"--delegate_serialize_dir={tmp_path}"]}.get(tool, [])
    if tool.endswith("_eval"):
        more = ["--ground_truth_images_path=/nowhere/i", "--model_output_labels=/nowhere/l"]
    messages = []
    words = [tool, "describe"] if tool == "lm" else [tool]
    for flags in (["--graph=/nowhere/m"], ["--model_file=/nowhere/m"]):
        assert main([*words, *flags, *more]) == 1
        messages.append(capsys.readouterr().err)
    assert messages[0] == messages[1]
    assert messages[0].count("/nowhere/m") == 1
    assert main([*words, "--graph=/nowhere/m", "--model_file=/nowhere/m", *more]) == 1
    assert "give one .tflite file, got 2" in capsys.readouterr().err


def test_the_demo_on_a_small_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--size=32", "--width=0.25", "--num_runs=2"]) == 0
    printed = capsys.readouterr().out
    assert "All 31 operations will run on XLA:CPU, in 1 partition." in printed
    assert "outputs agree with the numpy reference" in printed
    assert "ms delegated" in printed


def flags_of(tool: str) -> dict[str, str]:
    """A tool's flags with their help."""
    values = command_line.declared(importlib.import_module(f"jaxdelegate.tools.{tool}"))
    return {name: values[name].help for name in values}


# sensitivity simulates operators one by one, in programs of XLA alone.
RUN_MODELS = sorted(set(TOOLS) - {"analyze", "cache", "lm", "sensitivity"})


@pytest.mark.parametrize("tool", RUN_MODELS)
def test_tools_that_run_models_take_the_switch_of_the_native_kernels(tool: str) -> None:
    assert "jax_native_kernels" in flags_of(tool)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_option_of_the_delegate_has_one_flag(tool: str) -> None:
    """Another flag with an option's name is TFLite's, and its help says so."""
    found = flags_of(tool)
    for option in DelegateOptions.__dataclass_fields__:
        others = {name for name in found if option in name} - {f"jax_{option}", f"jax_{option}s"}
        assert others <= set(aliases(option)), others
        for name in aliases(option):
            assert (name in found) == (f"jax_{option}" in found)
            if name in found:
                assert found[name].startswith(f"TFLite's name of --jax_{option}.")
                assert found[f"jax_{option}"].endswith(f"TFLite's name: --{name}.")


def test_a_flag_is_boolean_in_all_tools_or_in_none() -> None:
    kinds: dict[str, set[bool]] = {}
    for tool in TOOLS:
        values = command_line.declared(importlib.import_module(f"jaxdelegate.tools.{tool}"))
        for name in values:
            kinds.setdefault(name, set()).add(values[name].boolean)
    assert [name for name, found in kinds.items() if len(found) > 1] == []


SMALL = ("--size=32", "--width=0.25", "--num_runs=1")


@pytest.mark.parametrize("before", [None, pytest.param("1", marks=pytest.mark.exhaustive)])
def test_the_switch_holds_for_one_tool(
    before: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAXDELEGATE_NATIVE_KERNELS", raising=False)
    if before is not None and library.why_not() is None:
        monkeypatch.setenv("JAXDELEGATE_NATIVE_KERNELS", before)
    variables = dict(os.environ)
    assert main(["demo", "--nojax_native_kernels", *SMALL]) == 0
    assert "Native kernels: off; XLA computes all." in capsys.readouterr().out
    assert dict(os.environ) == variables
    assert main(["demo", *SMALL]) == 0
    assert "Native kernels: off" not in capsys.readouterr().out


@pytest.mark.usefixtures("no_native_kernels")
def test_a_missing_library_is_said_once_by_name(
    network: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "network.tflite").write_bytes(network)
    model = ["--graph", str(tmp_path / "network.tflite"), "--num_runs=1", "--min_secs=0"]
    for arguments in (["demo", *SMALL], ["benchmark_model", *model, "--warmup_min_secs=0"]):
        assert main(arguments) == 0
        captured = capsys.readouterr()
        assert (captured.out + captured.err).count("absent is missing") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["cache", "--helpfull"], ["nothing"]])
def test_a_reader_that_closes_the_pipe(arguments: list[str]) -> None:
    """The pipe is closed before the first line, as by `| head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "jaxdelegate", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    is_silent = arguments != ["nothing"]  # its message goes to stderr, and nothing to the pipe
    assert done.returncode == (141 if is_silent else 1)
    assert (done.stderr == b"") == is_silent


ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[1A\r\x9b31m\u202e"
LINES = "".join(f"{end}FORGED\tline" for end in "\n\r\x0b\x0c\x1c\x85\u2028\u2029")


@pytest.fixture
def steering(tmp_path: Path) -> Path:
    """A model whose names, of tensors, an operator and the file, control a terminal."""
    builder = ModelBuilder(f"a description {ESCAPE}")
    x, y, z = builder.input((4,), name=f"x{ESCAPE}"), builder.tensor((4,)), builder.tensor((4,))
    builder.operator("RELU", [x], [y])
    builder.operator(f"Custom{ESCAPE}", [y], [z], CustomOptions())
    builder.outputs(z)
    path = tmp_path / "steering.tflite"
    path.write_bytes(builder.build())
    return path


@pytest.mark.parametrize("tool", ["analyze", "benchmark_model", "inference_diff"])
def test_names_do_not_control_the_terminal(
    steering: Path, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([tool, str(steering)])
    main([tool, str(steering), f"--input_layer=x{ESCAPE}"])
    main([tool, f"{steering}{ESCAPE}"])
    printed = capsys.readouterr()
    both = printed.out + printed.err
    assert "Custom\\x1b]0;owned\\x07" in both
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", both)


@pytest.fixture(scope="module")
def forging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose names, and the file's, contain lines."""
    builder = ModelBuilder(f"description{LINES}")
    x, y, z = (
        builder.input((1, 4), name=f"x{LINES}"),
        builder.tensor((1, 4), name=f"y{LINES}"),
        builder.tensor((1, 4), name=f"z{LINES}"),
    )
    weights = builder.constant(np.eye(4, dtype=np.float32), f"weights{LINES}")
    builder.operator("FULLY_CONNECTED", [x, weights, None], [y])
    builder.operator("EXP", [y], [z])
    builder.outputs(z)
    builder.signature(f"key{LINES}", {f"in{LINES}": x}, {f"out{LINES}": z})
    builder.metadata(f"metadata{LINES}", b"")
    graph = builder.subgraph(f"graph{LINES}")
    u = graph.input((1,))
    graph.operator(f"Custom{LINES}", [u], [v := graph.tensor((1,))], CustomOptions())
    graph.outputs(v)
    path = tmp_path_factory.mktemp("forging") / f"model{LINES}.tflite"
    path.write_bytes(builder.build())
    return path


_ONE_RUN = ("--num_runs=1", "--warmup_runs=0", "--min_secs=0", "--warmup_min_secs=0")


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze",),
        ("benchmark_model", *_ONE_RUN, "--enable_op_profiling", "--print_preinvoke_state"),
        ("benchmark_model", *_ONE_RUN, "--use_jax", "--input_layer=a", "--input_layer_shape=1,4"),
        ("benchmark_model", "--list_signatures"),
        ("benchmark_model", "--signature_to_run_for=none"),
        ("inference_diff", "--use_jax", "--num_runs=1", "--input_layer=none"),
        ("sensitivity", "--schemes=int8"),
        ("coco_eval", "--ground_truth_images_path=none"),
    ],
    ids=" ".join,
)
def test_names_start_no_line(
    forging: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main([arguments[0], str(forging), *arguments[1:]])
    printed = capsys.readouterr()
    assert printed.out + printed.err
    for line in (printed.out + printed.err).splitlines():
        assert not line.startswith("FORGED"), line
        assert "FORGED\t" not in line


def test_names_in_messages_and_reports_start_no_line() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,), name=f"x{LINES}"), builder.tensor((4,))
    builder.operator(f"Custom{LINES}", [x], [y], CustomOptions())
    builder.outputs(y)
    content = builder.build()
    delegate = jd.JaxDelegate()
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    report = delegate.report()
    texts = [str(report), report.reasons(), *report.causes()]
    for fails in (
        interpreter.allocate_tensors,
        jd.load(content).function,
        lambda: interpreter.set_tensor(0, np.zeros(4, np.int8)),
    ):
        with pytest.raises(jd.JaxDelegateError) as caught:
            fails()
        texts.append(str(caught.value))
    assert sum("FORGED" in text for text in texts) >= 5
    for line in "\n".join(texts).splitlines():
        assert not line.startswith("FORGED"), line
    assert interpreter.get_input_details()[0]["name"] == f"x{LINES}"


def test_a_progress_bar_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.escaped_output():
        for _ in tqdm(range(3), "a bar", mininterval=0):
            print(f"a line {ESCAPE[0]}")
    printed = capsys.readouterr()
    assert printed.err.count("\r") >= 3
    assert "3/3" in printed.err
    assert printed.out == "a line \\x1b\n" * 3


def test_the_help_says_which_programs_are_stored_anyway(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert main(["serve", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    folder = default_folder().replace(str(Path.home()), "~")
    assert f"not stored, except those of language models, in {folder}." in printed
