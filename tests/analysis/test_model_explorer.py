"""Node data is read by Model Explorer's classes and has its adapter's keys."""

import contextlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxdelegate as jd
from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.analysis.model_explorer import graph_id, node_data, write
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.testing.builder import ModelBuilder

Chain = Callable[..., bytes]
MODELS = Path(__file__).parents[2].parent / "shared" / "models"
MANIFEST = json.loads((MODELS / "manifest.json").read_text()) if MODELS.exists() else []
EXTRA = "needs ai-edge-model-explorer"


def test_values_are_those_of_the_analysis(chain: Chain) -> None:
    data = node_data(analyze_model(chain("ADD", "Mystery", "RELU")))
    assert list(data) == ["partition", "flops", "bytes"]
    places = data["partition"]["main"]["results"]
    assert {k: v["value"] for k, v in places.items()} == {
        "0": "partition 0",
        "1": "CPU",
        "2": "partition 1",
    }
    assert {k: v["value"] for k, v in data["flops"]["main"]["results"].items()} == {
        "0": 128,
        "2": 128,
    }
    assert [stop["stop"] for stop in data["flops"]["main"]["gradient"]] == [0, 0.5, 1]


def test_files_are_named_after_the_model(chain: Chain, tmp_path: Path) -> None:
    model = tmp_path / "small.tflite"
    model.write_bytes(chain("ADD"))
    paths = write(analyze_model(model), tmp_path / "new" / "data")
    assert [p.name for p in paths] == [f"small.{q}.json" for q in ("partition", "flops", "bytes")]
    assert json.loads(paths[1].read_text())["main"]["results"] == {"0": {"value": 128}}


def test_model_explorers_classes_load_the_files(chain: Chain, tmp_path: Path) -> None:
    builder = pytest.importorskip("model_explorer.node_data_builder", reason=EXTRA)
    dacite = importlib.import_module("dacite")
    strict = dacite.Config(strict=True, check_types=False)  # values may be strings: see its comment
    for path in write(analyze_model(chain("ADD", "Mystery", "RELU")), tmp_path):
        record = json.loads(path.read_text())
        graphs = {
            key: dacite.from_dict(builder.GraphNodeData, graph, strict)
            for key, graph in record.items()
        }
        again = json.loads(builder.ModelNodeData(graphsData=graphs).to_json_string())
        for key, graph in record.items():
            assert again[key]["results"] == graph["results"]
            assert again[key]["name"] == graph["name"]
            assert again[key]["gradient"] == graph.get("gradient", [])


def test_the_configuration_of_model_explorer_accepts_the_files(
    chain: Chain, tmp_path: Path
) -> None:
    model_explorer = pytest.importorskip("model_explorer", reason=EXTRA)
    config = model_explorer.config()
    for path in write(analyze_model(chain("ADD")), tmp_path):
        config.add_node_data_from_path(str(path))
    assert len(config.get_transferrable_data()) > 0
    assert len(config.node_data_sources) == 3


def converted(path: Path) -> dict[str, dict[str, Any]]:
    """Graphs by id, each as nodes by id, from Model Explorer's adapter."""
    adapter = pytest.importorskip("ai_edge_model_explorer_adapter", reason=EXTRA)
    text = adapter.ConvertFlatbufferDirectlyToJson(adapter.VisualizeConfig(), str(path))
    graphs = json.loads(text)[0]["subgraphs"]
    return {g["id"]: {node["id"]: node for node in g["nodes"]} for g in graphs}


def check_ids(path: Path) -> None:
    """Every key names the adapter's node of the same operator and the same outputs."""
    analysis = analyze_model(path)
    graphs = converted(path)
    data = node_data(analysis)["partition"]
    assert set(data) == set(graphs)
    for subgraph in analysis.subgraphs:
        nodes = graphs[graph_id(analysis, subgraph)]
        assert set(data[graph_id(analysis, subgraph)]["results"]) <= set(nodes)
        for op in subgraph.operators:
            tensors = [
                int(attribute["value"])
                for output in nodes[str(op.index)]["outputsMetadata"]
                for attribute in output["attrs"]
                if attribute["key"] == "tensor_index"
            ]
            assert tensors == list(op.outputs)


def two_graphs(first: str, second: str, *, signatures: bool) -> bytes:
    builder = ModelBuilder()
    for graph in (builder, builder.subgraph("second")):
        x, y = graph.input((2, 3)), graph.tensor((2, 3))
        graph.operator("RELU", [x], [y])
        graph.outputs(y)
    for i in range(2 if signatures else 0):
        builder.signature(f"key_{i}", {"a": 0}, {"b": 1}, i)

    def rename(model: Any) -> None:
        model.subgraphs[0].name, model.subgraphs[1].name = first or None, second or None

    return builder.build(edit=rename)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mobilenet_v1(size=32, width=0.25),
        lambda: two_graphs("one", "two", signatures=True),
        lambda: two_graphs("", "", signatures=True),
        lambda: two_graphs("", "", signatures=False),
    ],
    ids=["mobilenet", "names", "signatures", "no names"],
)
def test_ids_are_those_of_the_tflite_adapter(make: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(make())
    check_ids(path)


@pytest.mark.slow
@pytest.mark.skipif(not MANIFEST, reason="the real models are not here")
def test_ids_of_real_models_are_those_of_the_tflite_adapter() -> None:
    checked = 0
    for entry in MANIFEST:
        with contextlib.suppress(jd.ModelError):  # test_real_models.py lists them
            check_ids(MODELS / entry["file"])
            checked += 1
    assert checked == len(MANIFEST) - 2
