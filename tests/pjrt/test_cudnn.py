"""Starting cuDNN: the decision, and the program that does it."""

import jax
import pytest

from jaxdelegate.pjrt import cudnn


@pytest.mark.parametrize(
    ("platform", "code", "is_needed"),
    [
        ("gpu", b"..custom_call_target=__cudnn$convForward..", True),
        ("cuda", memoryview(b"cudnn"), True),
        ("gpu", b"gemm_fusion", False),
        ("cpu", b"cudnn", False),
    ],
)
def test_programs_that_need_it(platform: str, code: bytes, is_needed: bool) -> None:
    assert cudnn.is_needed(platform, code) is is_needed


def test_it_starts_once() -> None:
    cudnn.start.cache_clear()
    (device,) = jax.devices("cpu")[:1]
    cudnn.start(device)
    cudnn.start(device)
    assert cudnn.start.cache_info().misses == 1
