"""Configurations and statistics of models, in the form of Triton's messages."""

from typing import Any

from google.protobuf import json_format
from tritonclient.grpc import service_pb2

from jaxdelegate.serve.metrics import RunTimes
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2 import descriptions
from tests.serve.fakes import Fake, echo, tensor


def configured(model: Fake) -> dict[str, Any]:
    """A model's configuration, after a check that Triton has every field."""
    found = descriptions.configuration(model)
    json_format.ParseDict({"config": found}, service_pb2.ModelConfigResponse())
    return found


def test_with_batching_dimensions_are_those_of_an_item() -> None:
    model = echo("m", tensor("x", "f4", -1, 2, -1), tensor("s", object, -1))
    model.batch_sizes = (1, 2, 8)
    model.settings = ServeSettings(max_queue_delay_us=500, max_queue_size=9)
    found = configured(model)
    assert found["max_batch_size"] == 8
    assert found["input"] == [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [2, -1]},
        {"name": "s", "data_type": "TYPE_STRING", "dims": []},
    ]
    assert found["dynamic_batching"] == {
        "preferred_batch_size": [1, 2, 8],
        "max_queue_delay_microseconds": 500,
        "default_queue_policy": {"max_queue_size": 9},
    }


def test_without_batching_dimensions_are_complete() -> None:
    found = configured(echo("m", tensor("x", "i1", 1, 2)))
    assert found["max_batch_size"] == 0
    assert found["output"] == [{"name": "x", "data_type": "TYPE_INT8", "dims": [1, 2]}]
    assert not {"dynamic_batching", "sequence_batching"} & set(found)


def test_models_with_states_have_sequences() -> None:
    model = echo("m", tensor("x", bool, -1, 2))
    model.batch_sizes, model.is_stateful = (1, 2), True
    model.settings = ServeSettings(session_idle_s=1.5)
    found = configured(model)
    assert found["sequence_batching"]["max_sequence_idle_microseconds"] == 1_500_000
    assert "dynamic_batching" not in found  # Triton allows only one of them


def test_statistics() -> None:
    one, other = echo("one", tensor("x", "f4", -1)), echo("other", tensor("x", "f4", -1))
    signature = echo("one:a", tensor("x", "f4", -1))
    signature.recorder = one.recorder
    times = RunTimes(0.1, 0.2, 0.05)
    one.recorder.executed(requests=2, rows=3, request_s=0.6, queue_s=0.3, times=times)
    one.recorder.failed("TIMEOUT", 0.25)
    found = descriptions.statistics([one, signature, other])
    json_format.ParseDict(found, service_pb2.ModelStatisticsResponse())
    rows = {row["name"]: row for row in found["model_stats"]}
    assert list(rows) == ["one", "other"]
    row = rows["one"]
    assert (row["inference_count"], row["execution_count"]) == (3, 1)
    stats = row["inference_stats"]
    assert stats["success"] == {"count": 2, "ns": 600_000_000}
    assert stats["fail"] == {"count": 1, "ns": 250_000_000}
    assert stats["queue"] == {"count": 2, "ns": 300_000_000}
    assert stats["compute_infer"] == {"count": 2, "ns": 400_000_000}
    assert row["batch_stats"] == [
        {
            "batch_size": 3,
            "compute_input": {"count": 1, "ns": 100_000_000},
            "compute_infer": {"count": 1, "ns": 200_000_000},
            "compute_output": {"count": 1, "ns": 50_000_000},
        }
    ]
    assert rows["other"]["last_inference"] == 0
    (asked,) = descriptions.statistics([signature])["model_stats"]
    assert (asked["name"], asked["inference_count"]) == ("one:a", 3)
