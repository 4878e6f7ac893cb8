"""The analysis of real models, if they are next to the checkout."""

import json
from pathlib import Path

import pytest

import jaxdelegate as jd
from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.analysis.page import html_page

MODELS = Path(__file__).parents[2].parent / "shared" / "models"
MANIFEST = json.loads((MODELS / "manifest.json").read_text()) if MODELS.exists() else []
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MANIFEST, reason="the real models are not here"),
]

PARTS = 4
# Files that stock LiteRT refuses, too.
REFUSED = {
    "litert/lstm_calibrated2.bin",
    "litert/lstm_quantized2.bin",
}


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, PARTS))]
)
def test_every_real_model_is_analyzed(part: int) -> None:
    entries, refused = MANIFEST[part::PARTS], set()
    for entry in entries:
        path = MODELS / entry["file"]
        try:
            analysis = analyze_model(path)
        except jd.ModelError:
            refused.add(entry["file"])
            continue
        record = json.loads(analysis.to_json())
        for subgraph, described in zip(analysis.subgraphs, record["subgraphs"], strict=True):
            assert len(described["operators"]) == len(subgraph.operators)
            assert all(op.delegated or op.reason for op in subgraph.operators)
        title = str(analysis).splitlines()[0]
        assert len(title) <= 100
        assert title.endswith(f"{path.stem[-8:]}{path.suffix} ===")
        assert "</html>" in html_page(analysis)
    assert refused == REFUSED & {entry["file"] for entry in entries}


def test_deeplab() -> None:
    analysis = analyze_model(MODELS / "networks" / "image_segmenter__deeplabv3.tflite")
    (main,) = analysis.subgraphs
    assert main.summary == "All 70 operations will run on XLA:CPU, in 1 partition."
    (partition,) = main.partitions
    assert partition.bytes_in == 257 * 257 * 3 * 4
    assert partition.bytes_out == 257 * 257 * 21 * 4
