"""Predictor in the actors of Ray Data."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.measuring.tolerance import assert_close
from jaxdelegate.optional import optional_module
from jaxdelegate.ray import Predictor
from tests.ray import models

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]
COUNT = 60


class DiesOnce:
    """A Predictor whose process exits at a row, unless a file exists."""

    def __init__(self, died: str, row: int, **arguments: Any) -> None:
        self._predictor, self._died, self._row = Predictor(**arguments), died, row

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._row in batch["id"] and not os.path.exists(self._died):
            Path(self._died).touch()
            os._exit(1)
        return self._predictor(batch)


class WithProcess:
    """A Predictor that adds facts about its process."""

    def __init__(self, **arguments: Any) -> None:
        self._predictor = Predictor(**arguments)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        result, count = self._predictor(batch), len(batch["id"])
        stats = self._predictor.stats
        facts = {
            "threads": int(os.environ["NPROC"]),
            "stored": stats.programs_stored,
            "loaded": stats.programs_loaded,
            "process": os.getpid(),
        }
        return result | {name: np.full(count, value) for name, value in facts.items()}


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(COUNT, 3)).astype(np.float32)


def data_set(pixels: np.ndarray, blocks: int = 6) -> Any:
    data = optional_module("ray.data", "ray")
    data.DataContext.get_current().enable_progress_bars = False
    rows = [{"id": i, "x": row} for i, row in enumerate(pixels)]
    return data.from_items(rows, override_num_blocks=blocks)


def mapped(data: Any, predictor: type, size: int = 2, **arguments: Any) -> list[dict[str, Any]]:
    strategy = optional_module("ray.data", "ray").ActorPoolStrategy(size=size)
    result = data.map_batches(
        predictor, fn_constructor_kwargs=arguments, batch_size=8, compute=strategy, num_cpus=1
    )
    return sorted(result.take_all(), key=lambda row: row["id"])


def reference(pixels: np.ndarray) -> np.ndarray:
    interpreter = Interpreter(model_content=models.dense())
    interpreter.resize_tensor_input(0, pixels.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, pixels)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def check(rows: list[dict[str, Any]], pixels: np.ndarray) -> None:
    """Every row appears once, with its result."""
    assert [row["id"] for row in rows] == list(range(len(pixels)))
    got = np.stack([row["scores"] for row in rows])
    assert_close([got], [reference(pixels)], accumulated=3)


def test_a_data_set_by_two_actors_that_compile_once(pixels: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(models.dense())
    arguments = {
        "model": str(tmp_path / "m.tflite"),
        "options": {"serialization_dir": str(tmp_path / "programs")},
    }
    rows = mapped(data_set(pixels), WithProcess, **arguments, batch_sizes=[8])
    check(rows, pixels)
    assert {row["threads"] for row in rows} == {1}
    by_process = {row["process"]: (row["stored"], row["loaded"]) for row in rows}
    assert sum(stored for stored, _ in by_process.values()) == 1
    assert all(stored + loaded == 1 for stored, loaded in by_process.values())


def test_a_model_from_the_object_store_and_an_actor_that_dies(
    pixels: np.ndarray, tmp_path: Path
) -> None:
    model = optional_module("ray", "ray").put(models.dense())
    died = tmp_path / "died"
    check(mapped(data_set(pixels), DiesOnce, died=str(died), row=33, model=model), pixels)
    assert died.exists()


def test_errors_reach_the_user(pixels: np.ndarray) -> None:
    ray = optional_module("ray", "ray")
    made = ray.remote(Predictor).options(num_cpus=1)
    for arguments, message in (
        ({"model": ray.put({"no": "bytes"})}, "or a Ray object reference of bytes, got dict"),
        ({"model": models.dense(), "options": {"platform": "gpu"}}, "num_gpus=1"),
    ):
        actor = made.remote(**arguments)
        with pytest.raises(ray.exceptions.RayActorError, match=message):
            ray.get(actor.__ray_ready__.remote())
    with pytest.raises(OptionError, match="got a reference of dict"):
        Predictor(ray.put({"no": "bytes"}))
    column = {"model": models.dense(), "inputs": {"x": "y"}}
    with pytest.raises(Exception, match="there is no column 'y'; the batch has 'id', 'x'"):
        mapped(data_set(pixels), Predictor, size=1, **column)
