"""Other tools' measurements are assigned to the operators of an analysis."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxdelegate as jd
from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.analysis.measured import with_error, with_latency

Chain = Callable[..., bytes]


def latencies(model: bytes, path: Path, record: object) -> list[float | None]:
    path.write_text(json.dumps(record))
    return [op.latency_ms for op in with_latency(analyze_model(model), path).subgraphs[0].operators]


def errors(model: bytes, path: Path, record: object) -> list[float | None]:
    path.write_text(json.dumps(record))
    return [op.error for op in with_error(analyze_model(model), path).subgraphs[0].operators]


def test_plain_values_by_operator_and_by_tensor(chain: Chain, tmp_path: Path) -> None:
    model, path = chain("ADD", "RELU", "RELU"), tmp_path / "values.json"
    assert latencies(model, path, {"#0": 1.5, "2": 3}) == [1.5, None, 3]
    assert errors(model, path, {"y1": 1e-6}) == [None, 1e-6, None]


def row(nodes: list[int], us: float) -> dict:
    return {"type": "t", "name": "n", "nodes": nodes, "us": {"avg": us}}


def test_a_profile_divides_fused_times_and_prefers_operators_to_partitions(
    chain: Chain, tmp_path: Path
) -> None:
    profile = {
        "runs": 3,
        "init": [],
        "nodes": [row([0, 1, 3], 900.0), row([2], 70.0)],
        "inside_partitions": [row([0, 1], 500.0), row([3], 40.0), row([1], 10.0)],
    }
    found = latencies(
        chain("ADD", "RELU", "Mystery", "RELU"),
        tmp_path / "p.json",
        {"op_profile": profile, "operators": [], "inference_ms": {}},
    )
    assert found == pytest.approx([0.25, 0.26, 0.07, 0.04])


def test_layers_count_their_own_error_where_it_is_known(chain: Chain, tmp_path: Path) -> None:
    def tensor(value: float | None, largest: float = 0.5) -> dict:
        return {"relative_to_largest": value, "max_abs": largest}

    layers = [
        {"node": 0, "tensor": tensor(1e-6), "local": None},
        {"node": 1, "tensor": tensor(1e-2), "local": tensor(1e-5)},
        {"node": 1, "tensor": tensor(1e-2), "local": tensor(2e-5)},
        {"node": 2, "tensor": tensor(None), "local": None},
    ]
    found = errors(
        chain("ADD", "RELU", "RELU"), tmp_path / "d.json", {"layers": {"layers": layers}}
    )
    assert found == [1e-6, 2e-5, 0.5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a JSON file"),
        ("[1, 2]", "expected a JSON object, got list"),
        ('{"other": 1}', "'other' is neither an operator nor a computed tensor"),
        ('{"#7": 1}', "the model has 1 operator, got operator 7"),
        ('{"#0": "fast"}', "'#0': expected a number, got 'fast'"),
        ('{"#0": NaN}', "'#0': expected a number, got nan"),
        ('{"inference_ms": {}}', "has no values of single operators"),
        ('{"outputs": [], "layers": null}', "has no values of single operators"),
        ('{"op_profile": {"nodes": [{"nodes": [0]}]}}', "values of operators: 'us'"),
        ('{"op_profile": {"nodes": [3]}}', "not a result with values of operators"),
        ('{"op_profile": {"nodes": [{"nodes": ["0"], "us": {"avg": 1}}]}}', "got operator 0"),
    ],
)
def test_files_that_are_not_measurements(
    chain: Chain, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "values.json"
    path.write_text(content)
    with pytest.raises(jd.OptionError, match=r"values\.json: ") as caught:
        with_latency(analyze_model(chain("ADD")), path)
    assert message in str(caught.value)
