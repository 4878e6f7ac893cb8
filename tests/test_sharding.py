"""Models on several devices, as in docs/sharding.md, in one process and in two."""

import re
from pathlib import Path

import pytest

from tests.many_devices import ROOT, free_address, names_of, outcomes_of, printed_by_two

pytestmark = pytest.mark.slow  # fast: tests/function/test_sharded.py
PAGE = ROOT / "docs" / "sharding.md"
CASES = Path(__file__).parent / "sharding_cases.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, classifier: bytes) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sharding")
    (folder / "model.tflite").write_bytes(classifier)
    return outcomes_of(CASES, str(PAGE), folder=folder)


@pytest.mark.parametrize("name", names_of(CASES))
def test_eight_devices(name: str, outcomes: dict[str, str]) -> None:
    assert not outcomes[name], outcomes[name]


def test_two_processes(tmp_path: Path, classifier: bytes) -> None:
    (tmp_path / "model.tflite").write_bytes(classifier)
    (program,) = (
        block
        for block in re.findall(
            r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
        )
        if "distributed" in block
    )
    assert "localhost:12345" in program
    check = """
import jaxdelegate.testing
assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 4, 2)
assert scores.shape == (16, 32)
jaxdelegate.testing.assert_close([own_scores], apply(params, own), accumulated=768)
total = jax.jit(lambda params, images: apply(params, images)[0].sum())(params, images)
print("the sum over both:", float(total))  # the probabilities of each image add up to 1
"""
    text = program.replace("localhost:12345", free_address()) + check
    (tmp_path / "program.py").write_text(text)
    for printed in printed_by_two(["program.py"], tmp_path, devices=2):
        assert float(printed.split(":")[-1]) == pytest.approx(16, abs=1e-4)
