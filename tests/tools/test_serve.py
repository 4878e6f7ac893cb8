"""`jaxdelegate serve`: impossible flags, and missing packages."""

import sys
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.serve.settings import WARM_KINDS
from jaxdelegate.tools import command_line, serve
from tests.tools.conftest import Refuse

WRONG = {
    "none": ([], "give either a .tflite file or --models=name=path,name=path"),
    "both": (["m.tflite", "--models=a=b"], "give either a .tflite file or --models"),
    "name": (["--models=a=b", "--name=c"], "--name is for one model"),
    "form": (["--models=a"], "models: expected name=path,name=path, got 'a'"),
    "twice": (["--models=a=b,a=c"], "models: duplicate model name 'a'"),
    "missing": (["/nowhere/m.tflite", "--port=0"], "/nowhere/m.tflite"),
    "port": (["m.tflite", "--port=70000"], "port"),
    "batch": (["m.tflite", "--max_batch_size=0"], "max_batch_size"),
    "bytes": (["m.tflite", "--max_request_bytes=0"], "max_request_bytes"),
    "timeout": (["m.tflite", "--request_timeout_s=-1"], "request_timeout_s"),
    "answers": (["m.tflite", "--answer_timeout_s=-1"], "answer_timeout_s"),
    "tokens": (["m.tflite", "--max_num_tokens=0"], "max_num_tokens"),
    "warm": (["m.tflite", "--warm="], "warm: must be all, none or kinds of requests, got ''"),
    "warm-kind": (["m.tflite", "--warm=json,x"], "warm: must be kinds of any, long, sampling"),
    "held": (["m.tflite", "--max_held_bytes=0"], "max_held_bytes"),
    "sessions": (["m.tflite", "--session_count=0"], "session_count"),
    "sessions-of-one": (["m.tflite", "--sessions_per_client=0"], "sessions_per_client"),
    "idle": (["m.tflite", "--session_idle_s=0"], "session_idle_s"),
    "hold": (["m.tflite", "--session_hold_s=-1"], "session_hold_s"),
    "keys": (["m.tflite", "--api_key=a", "--grpc_port=0"], "gRPC does not check keys"),
    "threads": (["m.tflite", "--num_threads=-2"], "num_threads"),
    "host": (["m.tflite", "--host=256.0.0.1", "--port=0"], "256.0.0.1"),
}


@pytest.mark.parametrize("what", WRONG)
def test_impossible_flags(what: str, refused: Refuse) -> None:
    arguments, words = WRONG[what]
    assert words in refused("serve", *arguments)


def test_flags_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Server:
        def __init__(self, *arguments: Any, **_options: Any) -> None:
            given.extend(arguments)

        def run(self) -> None:
            pass

    monkeypatch.setattr("jaxdelegate.serve.running.Server", Server)
    values = command_line.declared(serve)
    values(["serve", "--session_count=9", "--sessions_per_client=3", "--session_idle_s=5"])
    values.batch_invariant = True
    values.api_key, values.strict_fields = "a, b", True
    values.session_hold_s, values.max_held_bytes, values.graph = 2.0, 1000, "a/m.tflite"
    assert serve.run(values) == 0
    models, settings, limits = given
    assert models == {"m": "a/m.tflite"}
    assert (settings.session_count, settings.sessions_per_client) == (9, 3)
    assert (settings.session_idle_s, settings.session_hold_s) == (5, 2)
    assert limits.max_held_bytes == 1000
    assert (limits.api_keys, limits.strict_fields) == (("a", "b"), True)
    assert (settings.warm, settings.batch_invariant) == (WARM_KINDS, True)
    for text, kinds in (("none", ()), ("long, json", ("long", "json"))):
        values.warm = text
        assert serve.run(values) == 0
        assert given[-2].warm == kinds
    assert not settings.speculative_decoding
    values.api_key, values.speculative_decoding = "", "true"
    monkeypatch.setenv("JAXDELEGATE_API_KEY", "c")
    assert serve.run(values) == 0
    assert given[-1].api_keys == ("c",)
    assert given[-2].speculative_decoding


@pytest.mark.parametrize("package", ["uvicorn", "starlette.applications", "prometheus_client"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refuse
) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(mobilenet_v1(size=32, width=0.25))
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("running", "application", "connections"):
        monkeypatch.delitem(sys.modules, f"jaxdelegate.serve.{name}", raising=False)
    message = refused("serve", str(path), "--port=0")
    assert "pip install 'httptools>=" in message
    assert package.replace("_", "-").partition(".")[0] in message
