"""A stored program that is found to be the graph's own answers for every rule."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import lowering
from jaxdelegate.cache.constants import ConstantDigests, FileDigests
from jaxdelegate.op_lowering.registry import RULES

NAMES = ["CONV_2D", "RESHAPE", "ADD", "FULLY_CONNECTED"]


@pytest.fixture(autouse=True)
def hashed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's digest is there when the graph is planned, as it mostly is."""
    monkeypatch.setattr(FileDigests, "is_hashed", property(lambda file: bool(file._name.result())))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators whose rules are asked from now on, in planning first, then in lowering."""
    names, why_not = list[str](), lowering.why_not

    def watched(context, operator, inputs, outputs) -> str | None:
        names.append(operator.name)
        return why_not(context, operator, inputs, outputs)

    monkeypatch.setattr(lowering, "why_not", watched)
    return names


def test_no_rule_is_asked_about_what_was_compiled(run, asked: list[str]) -> None:
    assert run() == "stored"
    assert asked[: len(NAMES)] == NAMES
    asked.clear()
    delegate = jd.JaxDelegate(serialization_dir=str(run.directory))
    np.testing.assert_array_equal(run._run(delegate), run.want)
    assert asked == []
    assert delegate.programs is not None
    assert delegate.programs.statistics.loaded == 1
    assert [node.delegated for node in delegate.report().nodes] == [True] * len(NAMES)


@pytest.mark.parametrize("options", [{"model_token": "other"}, {"quant_mode": "integer"}])
def test_other_settings_ask_again(run, asked: list[str], options: dict[str, str]) -> None:
    run()
    asked.clear()
    assert run(**options) == "stored"
    assert asked[: len(NAMES)] == NAMES


@pytest.mark.parametrize("part", ["host_cpu", "versions"])
def test_another_environment_asks_again(
    run, asked: list[str], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    asked.clear()
    other = {"host_cpu": lambda: ["another one"], "versions": lambda _: {"jax": "0.0.1"}}[part]
    monkeypatch.setattr(f"jaxdelegate.cache.environment.{part}", other)
    assert run() == "stored"
    assert asked[: len(NAMES)] == NAMES


def test_other_constants_ask_again(run, asked: list[str]) -> None:
    """The hint knows a file by its ends only."""
    run()
    asked.clear()
    content = bytearray(run.network)
    content[len(content) // 2] ^= 1
    other = type(run)(bytes(content), run.x, run.directory)
    assert np.any(other.want != run.want)
    asked.clear()
    assert other() == "stored"
    assert asked[: len(NAMES)] == NAMES


def test_another_shape_asks_again(run, asked: list[str]) -> None:
    run()
    asked.clear()
    delegate = jd.JaxDelegate(serialization_dir=str(run.directory))
    interpreter = jd.Interpreter(model_content=run.network, experimental_delegates=[delegate])
    assert asked == []
    interpreter.resize_tensor_input(0, (1, 8, 2, 128))
    interpreter.allocate_tensors()
    assert asked[: len(NAMES)] == NAMES


def test_a_rule_of_somebody_else_is_asked(
    run, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    asked.clear()
    monkeypatch.setitem(RULES, "ADD", dataclasses.replace(RULES["ADD"], why_not=lambda *_: "no"))
    delegate = jd.JaxDelegate(serialization_dir=str(run.directory))
    np.testing.assert_allclose(run._run(delegate), run.want, rtol=1e-5, atol=1e-5)
    assert asked[: len(NAMES)] == NAMES
    assert [node.op for node in delegate.report().left] == ["ADD"]


def test_digests_are_not_waited_for(run, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    asked.clear()
    monkeypatch.setattr(ConstantDigests, "are_made", lambda *_: False)
    assert run() == "loaded"
    assert asked == NAMES


def test_a_damaged_program_is_compiled_as_if_it_was_not_there(
    run, asked: list[str], directory: Path
) -> None:
    run()
    asked.clear()
    (path,) = directory.glob("*.program")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.warns(jd.CacheWarning, match="the digest of its code is wrong"):
        assert run() == "stored"
    assert asked[: len(NAMES)] == NAMES


def test_the_delegate_keeps_no_graph(run) -> None:
    run()
    delegate = jd.JaxDelegate(serialization_dir=str(run.directory))
    interpreter = jd.Interpreter(model_content=run.network, experimental_delegates=[delegate])
    assert delegate._foreseen == {}
    assert interpreter.num_subgraphs() == 1


def test_other_outputs_of_the_same_operators_are_another_program(run, asked: list[str]) -> None:
    run()
    asked.clear()
    delegate = jd.JaxDelegate(serialization_dir=str(run.directory))
    interpreter = jd.Interpreter(
        model_content=run.network,
        experimental_delegates=[delegate],
        experimental_preserve_all_tensors=True,
    )
    assert asked == []
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, run.x)
    interpreter.invoke()
    assert delegate.programs is not None
    assert delegate.programs.statistics.stored == 1
    index = interpreter.get_output_details()[0]["index"]
    np.testing.assert_allclose(interpreter.get_tensor(index), run.want, rtol=1e-5, atol=1e-5)
    for details in interpreter.get_tensor_details():
        assert interpreter.get_tensor(details["index"]).shape == tuple(details["shape"])
