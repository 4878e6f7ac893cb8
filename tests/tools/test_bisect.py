"""`jaxdelegate bisect`, as a user types it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing.networks import mobilenet_v1
from jaxdelegate.tools.main import main

DEEPLAB = Path(__file__).parents[3] / "shared/models/networks/image_segmenter__deeplabv3.tflite"


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "mobilenet.tflite"
    path.write_bytes(mobilenet_v1(size=32, width=0.25))
    return str(path)


def break_rule(patch: pytest.MonkeyPatch, name: str) -> None:
    rule = RULES[name]

    def lower(*arguments: Any) -> Any:
        right = rule.lower(*arguments)
        return lambda *arrays: tuple(y * 1.5 for y in right(*arrays))

    patch.setitem(RULES, name, dataclasses.replace(rule, lower=lower))


@pytest.mark.parametrize("reference", ["litert_ref", pytest.param("numpy", marks=pytest.mark.slow)])
def test_nothing_is_wrong_in_mobilenet_v1(
    mobilenet: str, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", f"--graph={mobilenet}", f"--reference={reference}"]) == 0
    assert f"all outputs agree with {reference}." in capsys.readouterr().out


@pytest.mark.parametrize("host", ["jaxdelegate", pytest.param("litert", marks=pytest.mark.slow)])
def test_a_broken_operator_of_mobilenet_v1(
    mobilenet: str,
    host: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_rule(monkeypatch, "AVERAGE_POOL_2D")
    result = tmp_path / "r.json"
    flags = [f"--graph={mobilenet}", f"--interpreter={host}", f"--result_json={result}"]
    # The last operators only: each range of the whole would be compiled.
    assert main(["bisect", *flags, "--first_delegate_node_index=26"]) == 2
    out = capsys.readouterr().out
    assert "Culprit: node #27 AVERAGE_POOL_2D -> 'pool'" in out
    assert "--first_delegate_node_index=27 --last_delegate_node_index=27" in out
    record = json.loads(result.read_text())
    assert record["verdict"] == "found"
    assert [(c["first"], c["last"]) for c in record["culprits"]] == [(27, 27)]
    assert record["culprits"][0]["nodes"] == [
        {"index": 27, "operator": "AVERAGE_POOL_2D", "outputs": ["pool"]}
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give one .tflite file, got 0"),
        (["--graph={model}.absent"], "Could not open"),
        (["--graph={model}", "--num_runs=x"], "num_runs"),
        (["--graph={model}", "--jax_first_delegate_node_index=3"], "bisect moves it"),
        (["--graph={model}", "--first_delegate_node_index=99"], "0 <= first <= last <= 30"),
        (["--graph={model}", "--use_jax=false"], "no delegate to search with"),
        (["--graph={model}", "--use_xnnpack"], "no delegate to search with"),
    ],
)
def test_mistakes_are_one_line(
    mobilenet: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", *(flag.format(model=mobilenet) for flag in flags)]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(not DEEPLAB.exists(), reason="the real models are not here")
def test_a_real_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_rule(monkeypatch, "CONCATENATION")
    flags = ["--reference=litert_builtin", "--first_delegate_node_index=60"]
    assert main(["bisect", f"--graph={DEEPLAB}", *flags]) == 2
    assert "Culprit: node #65 CONCATENATION -> 'concat'" in capsys.readouterr().out
