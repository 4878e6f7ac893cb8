"""bench/first_requests.py measures each kind of requests after a first and a second start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.children import compiling_quickly
from tests.support.language_models import language_bundle, language_model

SCRIPT = Path(__file__).parents[2] / "bench" / "first_requests.py"


@pytest.mark.slow
def test_all_requests_are_answered(tmp_path: Path) -> None:
    bundle, out = tmp_path / "tiny.litertlm", tmp_path / "out.jsonl"
    bundle.write_bytes(language_bundle(model=language_model(capacity=512)))
    flags = "--slots=2", "--kinds=json_and_logprobs,long,embeddings", f"--out={out}"
    variables = {**compiling_quickly(), "JAX_PLATFORMS": "cpu", "NPROC": "1"}
    command = [sys.executable, str(SCRIPT), str(bundle), *flags]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = out.read_text().splitlines()
    found = json.loads(line)
    assert ": any " in found["warm"]
    for start in ("first_start", "second_start"):
        assert list(found[start]) == ["json_and_logprobs", "long", "embeddings"]
        for times in found[start].values():
            assert times["error"] is None
            assert min(times["first"], times["again"]) > 0
        assert found["slowest_s"][start] == max(t["first"] for t in found[start].values())
