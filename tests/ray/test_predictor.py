"""Predictor as a plain function of columns: no Ray runs here."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import InterpreterError, ModelError, OptionError
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.measuring.tolerance import assert_close
from jaxdelegate.ray import PredictionError, Predictor, resources
from jaxdelegate.ray.resources import Resources, restrict
from tests.ray import models

pytestmark = pytest.mark.usefixtures("compiled_once")
ON_HOST = {"rebatch": False, "first_delegate_node_index": 9}  # an operator of the host fails


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def objects(*values: Any) -> np.ndarray:
    """A column whose rows differ."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def interpreted(model: bytes, array: np.ndarray) -> np.ndarray:
    """The numpy reference's output for a batch."""
    interpreter = Interpreter(model_content=model)
    detail = interpreter.get_input_details()[0]
    interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def test_outputs_are_added_to_the_columns() -> None:
    x, ids = rows(5), np.arange(5)
    result = Predictor(models.dense(), {"x": "pixels"})({"pixels": x, "id": ids})
    assert list(result) == ["pixels", "id", "scores"]
    np.testing.assert_array_equal(result["id"], ids)
    assert_close([result["scores"]], [interpreted(models.dense(), x)], accumulated=3)


def test_a_path_and_a_file_without_signature(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(models.dense(signature=False))
    predictor = Predictor(tmp_path / "m.tflite", outputs={"scores": "y"})
    assert predictor({"x": rows(2)})["y"].shape == (2, 4)


def test_a_predictor_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="give Ray the class"):
        pickle.dumps(Predictor(models.dense(), {"x": "pixels"}))


def test_strings() -> None:
    """Text or bytes, in rows of one string and of several."""
    one = Predictor(models.texts(1))({"text": objects("a", b"bc"), "index": np.zeros(2, np.int32)})
    assert one["chosen"].tolist() == [b"a", b"bc"]
    words = objects(np.array(["a", "bc"], object), np.array([b"d", b""], object))
    index = np.array([[1, 1], [1, 0]], np.int32)
    found = Predictor(models.texts(2))({"text": words, "index": index})
    assert found["chosen"].tolist() == [[b"bc", b"bc"], [b"", b"d"]]


@pytest.mark.parametrize("sizes", [[8, 8, 3, 1, 8], [3, 8, 5, 1]])
def test_a_smaller_batch_is_padded(sizes: list[int]) -> None:
    predictor = Predictor(models.dense())
    for seed, count in enumerate(sizes):
        x = rows(count, seed)
        scores = predictor({"x": x})["scores"]
        assert_close([scores], [interpreted(models.dense(), x)], accumulated=3)
    assert predictor.stats.rows == sum(sizes)
    assert predictor.stats.batches == len(sizes)
    in_size = {8: 8, 5: 8, 3: 3 if sizes[0] == 3 else 8, 1: 3 if sizes[0] == 3 else 8}
    assert predictor.stats.rows_padded == sum(in_size[n] - n for n in sizes)


def test_given_sizes_split_larger_batches() -> None:
    predictor = Predictor(models.dense(), batch_sizes=[2, 4])
    x = rows(7)
    assert_close([predictor({"x": x})["scores"]], [interpreted(models.dense(), x)], accumulated=3)
    assert predictor.stats.rows_padded == 1  # 4 + 3


@pytest.mark.parametrize(
    ("fixed", "batches", "sizes"),
    [
        (None, (3, 100, 50, 101, 129, 257, 300), (3, 100, 100, 128, 256, 512, 512)),
        ([4, 2], (1, 2, 3, 9), (2, 2, 4, 12)),
    ],
)
def test_varying_batches_need_few_sizes(
    fixed: list[int] | None, batches: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    predictor = Predictor(models.dense(), batch_sizes=fixed)
    for count, size in zip(batches, sizes, strict=True):
        before = predictor.stats.rows_padded
        assert predictor({"x": rows(count)})["scores"].shape == (count, 4)
        assert predictor.stats.rows_padded - before == size - count


def test_a_batch_on_a_graph_that_fixes_one_has_the_bits_of_single_runs() -> None:
    x = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    result = Predictor(models.flattened(), batch_sizes=[4])({"x": x})
    np.testing.assert_array_equal(result["flat"], x.reshape(5, 6))


def test_a_model_without_a_batch_runs_row_by_row() -> None:
    x = rows(3)
    np.testing.assert_array_equal(Predictor(models.vector())({"x": x})["sum"], 2 * x)


def test_a_graph_that_takes_no_batch_runs_row_by_row(caplog: pytest.LogCaptureFixture) -> None:
    x = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    predictor = Predictor(models.flattened(), options={"rebatch": False})
    np.testing.assert_array_equal(predictor({"x": x})["flat"], x.reshape(3, 6))
    assert "row by row" in predictor.notes[0]
    assert "row by row" in caplog.text


def test_no_rows() -> None:
    result = Predictor(models.dense())({"x": rows(0)})
    assert (result["scores"].shape, result["scores"].dtype) == ((0, 4), np.float32)


WRONG: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"image": rows(2), "id": np.arange(2)}, r"no column 'x'; .* 'image', 'id'"),
    (lambda: {"x": rows(2).astype(np.float64)}, "every row: expected float32.*astype"),
    (lambda: {"x": rows(2)[:, None]}, r"every row: expected \[3\], got \[1, 3\]; remove"),
    (lambda: {"x": rows(2)[:, :2]}, r"every row: expected \[3\], got \[2\]$"),
    (lambda: {"x": rows(2), "scores": rows(2)}, "'scores' is already in the batch"),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "message"), WRONG)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_column_that_does_not_fit_is_always_an_error(
    batch: Callable[[], dict[str, Any]], message: str, on_error: Any
) -> None:
    with pytest.raises(PredictionError, match=message):
        Predictor(models.dense(), on_error=on_error)(batch())


def ragged() -> dict[str, Any]:
    good = rows(5)
    column = objects(good[0], good[1][:2], good[2], None, good[4].astype(np.float64))
    return {"x": column, "id": np.array(["a", "b", "c", "d", "e"])}


def test_rows_that_do_not_fit_are_named() -> None:
    with pytest.raises(PredictionError) as caught:
        Predictor(models.dense(), key="id")(ragged())
    message = str(caught.value)
    assert "3 of 5 rows" in message
    assert "id='b': column 'x' for input 'x': expected [3], got [2]" in message
    assert "id='d': column 'x' for input 'x': it is null" in message
    assert "id='e': column 'x' for input 'x': expected float32, got float64" in message
    with pytest.raises(PredictionError, match="row 1 of the batch"):
        Predictor(models.dense())(ragged())
    with pytest.raises(PredictionError, match="key: there is no column 'name'"):
        Predictor(models.dense(), key="name")(ragged())


def test_rows_that_do_not_fit_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    predictor = Predictor(models.dense(), key="id", on_error="skip")
    result = predictor(ragged())
    assert result["id"].tolist() == ["a", "c"]
    x = np.stack(result["x"].tolist())
    assert_close([result["scores"]], [interpreted(models.dense(), x)], accumulated=3)
    assert (predictor.stats.rows, predictor.stats.rows_skipped) == (2, 3)
    assert "skipped 3 of 5 rows: id='b'" in caplog.text
    nothing = predictor({"x": objects(None, None), "id": np.arange(2)})
    assert nothing["scores"].shape == (0, 4)
    assert nothing["id"].shape == (0,)


def test_rows_on_which_the_model_fails() -> None:
    batch = {"index": np.array([1, 9, 3], np.int32), "id": np.array([5, 6, 7])}
    with pytest.raises(PredictionError, match=r"1 of 3 rows .* id=6: ") as caught:
        Predictor(models.lookup(), key="id", options=ON_HOST)(batch)
    assert isinstance(caught.value.__cause__, InterpreterError)
    skipping = Predictor(models.lookup(), key="id", options=ON_HOST, on_error="skip")
    result = skipping(batch)
    assert result["id"].tolist() == [5, 7]
    assert result["found"].tolist() == [[2, 3], [6, 7]]
    assert skipping.stats.rows_skipped == 1


def test_wrong_arguments(tmp_path: Path) -> None:
    model = models.dense()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"inputs": {"y": "x"}}, "inputs: 'y' is not an input of the model; it has 'x'"),
        ({"outputs": ["y"]}, "outputs: 'y' is not an output of the model; it has 'scores'"),
        ({"outputs": []}, "expected at least one"),
        ({"outputs": "scores"}, "got the text"),
        ({"signature": "other"}, "the model's, 'serving_default', got 'other'"),
        ({"batch_sizes": []}, "batch_sizes: must be at least 1"),
        ({"batch_sizes": [4, 0]}, "batch_sizes: must be at least 1"),
        ({"on_error": "ignore"}, "on_error"),
        ({"options": {"cache_dir": "x"}}, "did you mean: serialization_dir"),
    ]  # fmt: skip
    for arguments, message in wrong:
        with pytest.raises(OptionError, match=message):
            Predictor(model, **arguments)
    with pytest.raises(OptionError, match="model: expected a path, bytes, or"):
        Predictor(np.zeros(3))
    with pytest.raises(ModelError):
        Predictor(tmp_path / "none.tflite")


@pytest.mark.usefixtures("compiled_uncached")
def test_programs_come_from_the_shared_folder(
    tmp_path: Path, forget_models: Callable[[], None]
) -> None:
    first = Predictor(models.dense(), options={"serialization_dir": tmp_path / "programs"})
    want = first({"x": rows(4)})["scores"]
    forget_models()
    second = Predictor(models.dense(), options={"serialization_dir": tmp_path / "programs"})
    np.testing.assert_array_equal(second({"x": rows(4)})["scores"], want)
    counts = [(p.stats.programs_stored, p.stats.programs_loaded) for p in (first, second)]
    assert counts == [(1, 0), (0, 1)]


def test_an_actor_uses_only_its_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(resources, "use_threads", threads.append)
    assert restrict(Resources(cpus=2), {}, None).platform == "cpu"
    assert restrict(Resources(cpus=0.5), {"platform": "cpu"}, None).platform == "cpu"
    assert restrict(Resources(cpus=1, gpus=1), {}, None).platform == "gpu"
    assert restrict(Resources(cpus=3), {}, 2).platform == "cpu"
    assert restrict(None, {}, None).platform is None
    assert threads == [2, 1, 2]
    with pytest.raises(OptionError, match=r"'gpu' is requested, .* map_batches.*num_gpus=1"):
        restrict(Resources(cpus=1), {"platform": "gpu"}, None)
    with pytest.raises(OptionError, match="'cpu' is requested, but Ray assigned a gpu"):
        restrict(Resources(gpus=1), {"platform": "cpu"}, None)
    with pytest.raises(OptionError, match="set num_gpus=1"):
        restrict(Resources(gpus=2), {}, None)


def test_importing_it_does_not_need_ray() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from jaxdelegate.ray import Predictor\n"
        "from jaxdelegate.optional import optional_module\n"
        "try:\n    optional_module('ray', 'ray')\nexcept ValueError as error:\n"
        "    sys.exit('ray[data]>=' not in str(error))\nsys.exit(2)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
