"""The application in a local Ray Serve."""

import json
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.serve import ray_serve
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.testing import assert_close
from tests.serve.stock import NETWORKS, stock_outputs


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_results_of_a_deployment_equal_the_stock_interpreter_s(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    import ray
    from ray import serve

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(
            ray_serve.deployment(
                {"words": NETWORKS / "keywords.tflite"}, ServeSettings(max_batch_size=1)
            )
        )
        x = rng.normal(size=(1, 32)).astype(np.float32)
        entry = {"name": "features", "datatype": "FP32", "shape": [1, 32], "data": x[0].tolist()}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v2/models/words/infer",
            json.dumps({"inputs": [entry]}).encode(),
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            (output,) = json.load(answer)["outputs"]
        found = np.array(output["data"], np.float32).reshape(output["shape"])
        assert_close([found], stock_outputs("keywords", [x]))
    finally:
        serve.shutdown()
        ray.shutdown()
