"""TextPredictor in the actors of Ray Data."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.lm import SamplerConfig
from jaxdelegate.optional import optional_module
from jaxdelegate.ray import TextPredictor
from tests.support.language_models import language_bundle
from tests.support.text_encoders import embedding_bundle

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]
COUNT = 60
OUTPUTS = ["generated_text", "generated_tokens", "log_probabilities"]


class DiesOnce:
    """A TextPredictor whose process is killed at a row, unless a file exists."""

    def __init__(self, died: str, row: int, **arguments: Any) -> None:
        self._predictor, self._died, self._row = TextPredictor(**arguments), died, row

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._row in batch["id"] and not os.path.exists(self._died):
            Path(self._died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._predictor(batch)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lm")
    (folder / "model.litertlm").write_bytes(language_bundle())
    return {
        "model": str(folder / "model.litertlm"),
        "options": {"serialization_dir": str(folder / "programs")},
    }


def texts(count: int = COUNT) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 60)))) for _ in range(count)]


def data_set(rows: list[dict[str, Any]], blocks: int = 6) -> Any:
    data = optional_module("ray.data", "ray")
    data.DataContext.get_current().enable_progress_bars = False
    return data.from_items(rows, override_num_blocks=blocks)


def mapped(data: Any, predictor: type, size: int = 1, **arguments: Any) -> Any:
    strategy = optional_module("ray.data", "ray").ActorPoolStrategy(size=size)
    return data.map_batches(
        predictor, fn_constructor_kwargs=arguments, batch_size=7, compute=strategy, num_cpus=1
    )


def test_two_actors_of_which_one_is_killed_equal_one_process(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    arguments = {
        **arguments,
        "sampler_config": SamplerConfig(top_k=16, top_p=1.0, temperature=2.0, seed=1),
        "max_output_tokens": 8,
        "outputs": OUTPUTS,
    }
    prompts = texts()
    want = TextPredictor(**arguments)({"prompt": np.array(prompts, object)})
    data = data_set([{"id": i, "prompt": text} for i, text in enumerate(prompts)])
    died = tmp_path / "died"
    found = mapped(data, DiesOnce, 2, died=str(died), row=33, **arguments).take_all()
    found.sort(key=lambda row: row["id"])
    assert died.exists()
    assert [row["id"] for row in found] == list(range(COUNT))
    assert [row["prompt"] for row in found] == prompts
    assert [row["generated_text"] for row in found] == want["generated_text"].tolist()
    assert [[*row["generated_tokens"]] for row in found] == want["generated_tokens"].tolist()
    for row, wanted in zip(found, want["log_probabilities"], strict=True):
        np.testing.assert_allclose(row["log_probabilities"], wanted, rtol=1e-5)


def test_columns_of_arrow_and_errors(arguments: dict[str, Any], tmp_path: Path) -> None:
    """Structs in lists, nulls and tensors; the error of a row reaches the user."""
    chats = [
        [{"role": "user", "content": "Hello"}],
        None,
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    ]
    rows = [{"id": i, "chat": chat} for i, chat in enumerate(chats)]
    data = data_set(rows, 1)
    more = {"inputs": {"messages": "chat"}, "max_output_tokens": 4, "key": "id"}
    found = mapped(data, TextPredictor, on_error="skip", **arguments, **more).take_all()
    assert [row["id"] for row in found] == [0, 2]
    column = np.empty(2, object)
    column[:] = chats[0], chats[2]
    batch = {"chat": column, "id": np.array([0, 2])}
    want = TextPredictor(**arguments, **more)(batch)["generated_text"].tolist()
    assert [row["generated_text"] for row in found] == want
    with pytest.raises(Exception, match=r"1 of 3 rows .* id=1: column 'chat': it is null"):
        mapped(data, TextPredictor, **arguments, **more).take_all()

    path = str(tmp_path / "encoder.litertlm")
    Path(path).write_bytes(embedding_bundle())
    some = [text[:12] for text in texts(10)]
    data = data_set([{"text": text} for text in some], 1)
    found = mapped(data, TextPredictor, model=path, task="embed").take_all()
    embeddings = np.stack([row["embeddings"] for row in found])
    assert embeddings.dtype == np.float32
    wanted = TextPredictor(path, "embed")({"text": np.array(some, object)})["embeddings"]
    np.testing.assert_allclose(embeddings, wanted, rtol=1e-5, atol=1e-6)
