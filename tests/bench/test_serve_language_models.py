"""bench/serve_language_models.py: all modes with small counts; what counts as wrong."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import compiling_quickly
from tests.support.language_models import language_bundle, language_model

SCRIPT = Path(__file__).parents[2] / "bench" / "serve_language_models.py"


def ran(folder: Path, *flags: str) -> dict[str, Any]:
    bundle = folder / "tiny.litertlm"
    bundle.write_bytes(language_bundle(model=language_model(capacity=512)))
    command = [sys.executable, str(SCRIPT), str(bundle), *flags, f"--out={folder / 'out.jsonl'}"]
    variables = {**compiling_quickly(), "JAX_PLATFORMS": "cpu", "NPROC": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: memory grows in the first requests
    (line,) = (folder / "out.jsonl").read_text().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.slow
def test_rates(tmp_path: Path) -> None:
    small = ("--slots=2", "--answer_tokens=6", "--requests=2", "--rounds=2")
    found = ran(tmp_path, "--clients=2", "--clients=3", *small)
    assert (found["chats"], found["wrong"]) == (3, {"jaxdelegate": 0})
    for clients in (1, 2, 3):
        assert found[f"clients_{clients}"]["jaxdelegate"]["median"] > 0


@pytest.mark.slow
def test_a_soak(tmp_path: Path) -> None:
    small = ("--soak=40", "--clients=5", "--slots=2", "--answer_tokens=9")
    found = ran(tmp_path, *small)
    assert sum(found["done"].values()) == found["requests"] == 40
    assert found["done"]["left"] == 8
    assert (found["errors"], found["running_at_end"]) == ([], 0)


def test_a_wrong_text_and_a_lost_request_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = importlib.import_module("text_clients")
    texts = iter(["right", "wrong"])

    def answered(*_: Any) -> Any:
        text = next(texts, None)
        if text is None:
            raise ConnectionResetError
        return text, 1

    class Server:
        port = 1

        def rss_anon_mb(self) -> float:
            return 100.0

    monkeypatch.setattr(clients, "answer", answered)
    monkeypatch.setattr(clients, "streamed", lambda *_: answered()[0])
    soak = clients.Soak(Server(), [clients.Case({}, "right")], 3, 0)
    for number in (1, 2, 3):  # none of those that leave
        soak.request(number)
    assert len(soak.samples) == sum(soak.done.values()) == 3
    wrong, lost = soak.errors
    assert "expected 'right', got 'wrong'" in wrong
    assert "ConnectionResetError" in lost


@pytest.mark.slow
def test_equal_answers(tmp_path: Path) -> None:
    found = ran(tmp_path, "--equal=24", "--clients=3", "--slots=3", "--rounds=1")
    assert found["requests"] == 24
    assert found["differing"]["batch_invariant"] == [0, 0]
    assert len(found["differing"]["jaxdelegate"]) == 2
    for kind in ("at_once", "one_by_one"):
        assert found[kind]["batch_invariant"]["median"] > 0
