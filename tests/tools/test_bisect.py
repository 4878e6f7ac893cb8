"""`jaxdelegate bisect` on the command line."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.tools.main import main

pytestmark = pytest.mark.usefixtures("compiled_once")
DEEPLAB = Path(__file__).parents[3] / "shared/models/networks/image_segmenter__deeplabv3.tflite"


def break_rule(patch: pytest.MonkeyPatch, name: str) -> None:
    rule = RULES[name]

    def lower(*arguments: Any) -> Any:
        right = rule.lower(*arguments)
        return lambda *arrays: tuple(y * 1.5 for y in right(*arrays))

    patch.setitem(RULES, name, dataclasses.replace(rule, lower=lower))


@pytest.mark.parametrize("reference", ["litert_ref", "numpy"])
@pytest.mark.parametrize(
    "model", ["network_path", pytest.param("mobilenet_path", marks=pytest.mark.slow)]
)
def test_nothing_is_wrong(
    model: str,
    reference: str,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    path = request.getfixturevalue(model)
    assert main(["bisect", f"--graph={path}", f"--reference={reference}"]) == 0
    assert f"all outputs agree with {reference}." in capsys.readouterr().out


@pytest.mark.parametrize("host", ["jaxdelegate", "litert"])
@pytest.mark.parametrize(
    ("model", "first", "node"),
    [("network_path", 0, 3), pytest.param("mobilenet_path", 26, 27, marks=pytest.mark.slow)],
)
def test_a_broken_operator(
    model: str,
    first: int,
    node: int,
    host: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    break_rule(monkeypatch, "AVERAGE_POOL_2D")
    result = tmp_path / "r.json"
    flags = [
        f"--graph={request.getfixturevalue(model)}",
        f"--interpreter={host}",
        f"--result_json={result}",
    ]
    # Of mobilenet the last operators only: each range of the whole would be compiled.
    assert main(["bisect", *flags, f"--first_delegate_node_index={first}"]) == 2
    out = capsys.readouterr().out
    assert f"Culprit: node #{node} AVERAGE_POOL_2D -> 'pool'" in out
    assert f"--first_delegate_node_index={node} --last_delegate_node_index={node}" in out
    record = json.loads(result.read_text())
    assert record["verdict"] == "found"
    assert [(c["first"], c["last"]) for c in record["culprits"]] == [(node, node)]
    assert record["culprits"][0]["nodes"] == [
        {"index": node, "operator": "AVERAGE_POOL_2D", "outputs": ["pool"]}
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--graph is required"),
        (["--graph={model}.absent"], "Could not open"),
        (["--graph={model}", "--num_runs=x"], "num_runs"),
        (
            [
                "--graph={model}",
                "--jax_first_delegate_node_index=3",
                "--first_delegate_node_index=2",
            ],
            "two names of one option",
        ),
        (["--graph={model}", "--jax_first_delegate_node_index=99"], "0 <= first <= last <= 4"),
        (["--graph={model}", "--first_delegate_node_index=99"], "0 <= first <= last <= 4"),
        (["--graph={model}", "--use_jax=false"], "no delegate to search with"),
        (["--graph={model}", "--use_xnnpack"], "no delegate to search with"),
    ],
)
def test_mistakes_are_one_line(
    network_path: str, flags: list[str], message: str, refused: Callable[..., str]
) -> None:
    assert message in refused("bisect", *(flag.format(model=network_path) for flag in flags))


@pytest.mark.exhaustive  # slow: the same in tests/comparison/test_bisect.py
@pytest.mark.skipif(not DEEPLAB.exists(), reason="the real models are not here")
def test_a_real_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_rule(monkeypatch, "CONCATENATION")
    flags = ["--reference=litert_builtin", "--first_delegate_node_index=60"]
    assert main(["bisect", f"--graph={DEEPLAB}", *flags]) == 2
    assert "Culprit: node #65 CONCATENATION -> 'concat'" in capsys.readouterr().out
