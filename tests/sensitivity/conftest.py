"""Networks with one sensitive operator, quantized by litert-quantizer."""

from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from tests.support.networks import small_classifier

Images = list[np.ndarray]


@pytest.fixture(scope="session")
def images() -> Images:
    rng = np.random.default_rng(5)
    return [rng.uniform(-1, 1, (1, 16, 16, 3)).astype(np.float32) for _ in range(6)]


@pytest.fixture(scope="session")
def fragile() -> bytes:
    """`dense_4` has weights of 1000 for a feature that is always zero, which spoil its scales.

    `conv_3` yields the feature: no weights, and a bias that RELU6 cuts off.
    """

    def edit(values: dict[str, np.ndarray]) -> None:
        values["conv_3/weights"][0], values["conv_3/bias"][0] = 0, -1
        values["dense_4/weights"][:, 0] = 1000
        values["dense_5/weights"] *= 5  # probabilities far from 1/32

    return edited(small_classifier(), edit)


def edited(content: bytes, edit: Callable[[dict[str, np.ndarray]], None]) -> bytes:
    """A model whose float constants `edit` has changed in place."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    values = {}
    for t in model.subgraphs[0].tensors:
        data = model.buffers[t.buffer].data
        if t.type == schema.TensorType.FLOAT32 and data is not None:
            array = np.asarray(data, np.uint8).view(np.float32).reshape(t.shape).copy()
            values[t.name.decode()] = array
    edit(values)
    for t in model.subgraphs[0].tensors:
        if t.name.decode() in values:
            model.buffers[t.buffer].data = values[t.name.decode()].view(np.uint8).reshape(-1)
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.fixture(scope="session")
def quantized() -> Callable[..., bytes]:
    """A model that litert-quantizer has quantized by a recipe."""
    quantizer = pytest.importorskip("litert_quantizer.quantizer", reason="needs the quantizer")
    calibrator = pytest.importorskip("litert_quantizer.calibrator")
    utils = pytest.importorskip("litert_quantizer.utils.qsv_utils")
    managers = pytest.importorskip("litert_quantizer.recipe_manager")

    def ranges(content: bytes, recipe: Any, name: str, samples: Sequence[np.ndarray]) -> Any:
        manager = managers.RecipeManager()
        manager.load_quantization_recipe(recipe)
        calibration = calibrator.Calibrator(
            content, num_threads=1, qsv_update_func=utils.min_max_update
        )
        data = {"serving_default": [{name: sample} for sample in samples]}
        calibration.calibrate(data, manager)
        return calibration.get_model_qsvs()

    def run(
        content: bytes, recipe: Any, seen: Any = None, *, name: str = "", samples: Any = ()
    ) -> bytes:
        if seen is None and samples:
            seen = ranges(content, recipe, name, samples)
        q = quantizer.Quantizer(bytearray(content))
        q.load_quantization_recipe(recipe)
        return bytes(q.quantize(seen, enable_progress_report=False).quantized_model)

    run.ranges = ranges  # type: ignore[attr-defined]
    return run


def outputs(content: bytes, samples: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Each output of stock LiteRT, dequantized, for all samples, in the order of the file."""
    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    (given,), results = interpreter.get_input_details(), interpreter.get_output_details()
    rows: list[list[np.ndarray]] = [[] for _ in results]
    for sample in samples:
        interpreter.set_tensor(given["index"], _quantized(sample, given))
        interpreter.invoke()
        for row, result in zip(rows, results, strict=True):
            y = interpreter.get_tensor(result["index"]).astype(np.float32)
            scale, zero_point = result["quantization"]
            row.append((y - zero_point) * scale if scale else y)
    return [np.stack(row) for row in rows]


def _quantized(x: np.ndarray, detail: Any) -> np.ndarray:
    scale, zero_point = detail["quantization"]
    if not scale:
        return x
    limits = np.iinfo(detail["dtype"])
    return np.clip(np.rint(x / scale) + zero_point, limits.min, limits.max).astype(detail["dtype"])


@pytest.fixture(scope="session")
def stock_error() -> Callable[..., float]:
    """The error of a quantized model in stock LiteRT: RMS, relative to the float model's.

    Of several outputs the largest.
    """

    def error(model: bytes, other: bytes, samples: Sequence[np.ndarray]) -> float:
        rows = zip(outputs(model, samples), outputs(other, samples), strict=True)
        return max(
            float(np.sqrt(np.square(got - want).sum() / np.square(want).sum()))
            for want, got in rows
        )

    return error
