"""The application in a local Ray Serve."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.serve import ray_serve
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.testing import assert_close
from tests.serve.stock import NETWORKS, stock_outputs
from tests.support.language_models import language_bundle

pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings("ignore")]  # Ray's own
HELLO = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A local Ray Serve; yields the URL of its proxy."""
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    import ray
    from ray import serve

    with socket.socket() as free, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
        ray.shutdown()


def deployed(models: dict[str, Path], settings: ServeSettings) -> None:
    from ray import serve

    serve.run(ray_serve.deployment(models, settings))


def answered(url: str, body: dict[str, Any]) -> Any:
    return urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode()), timeout=60
    )


def test_results_of_a_deployment_equal_the_stock_interpreter_s(
    rng: np.random.Generator, address: str
) -> None:
    deployed({"words": NETWORKS / "keywords.tflite"}, ServeSettings(max_batch_size=1))
    x = rng.normal(size=(1, 32)).astype(np.float32)
    entry = {"name": "features", "datatype": "FP32", "shape": [1, 32], "data": x[0].tolist()}
    with answered(f"{address}/v2/models/words/infer", {"inputs": [entry]}) as answer:
        (output,) = json.load(answer)["outputs"]
    found = np.array(output["data"], np.float32).reshape(output["shape"])
    assert_close([found], stock_outputs("keywords", [x]))


def test_a_language_model_answers_and_streams(address: str, tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle())
    deployed({"chat": path}, ServeSettings(max_batch_size=2, warm=()))
    with lm.Engine(path) as engine:
        prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        (wanted,) = engine.generate([prompt], max_output_tokens=40)
    with answered(f"{address}/v1/chat/completions", HELLO) as answer:
        (choice,) = json.load(answer)["choices"]
    assert choice["message"]["content"] == wanted.text
    with answered(f"{address}/v1/chat/completions", {**HELLO, "stream": True}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        events = [line[6:] for line in answer.read().decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(pieces) == wanted.text
    assert sum(map(bool, pieces)) > 1
