"""The console script."""

import pytest

from jaxdelegate.tools.main import TOOLS, main


def test_usage_lists_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in TOOLS)


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
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("tool", list(TOOLS))
def test_every_tool_has_help(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tool, "--help"]) == 0
    assert TOOLS[tool] in capsys.readouterr().out


def test_the_demo_on_a_small_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--size=32", "--width=0.25", "--num_runs=2"]) == 0
    printed = capsys.readouterr().out
    assert "All 31 operations will run on XLA:CPU, in 1 partition." in printed
    assert "outputs agree with the numpy reference" in printed
    assert "ms delegated" in printed
