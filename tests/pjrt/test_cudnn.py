"""Starting cuDNN: the decision, and the program that does it."""

import jax
import pytest

from jaxdelegate.pjrt import cudnn


@pytest.mark.parametrize(
    ("code", "is_called"),
    [
        (b"..custom_call_target=__cudnn$convForward..", True),
        (memoryview(b"cudnn"), True),
        (b"gemm_fusion", False),
    ],
)
def test_programs_that_call_it(code: bytes, is_called: bool) -> None:
    assert cudnn.is_called(code) is is_called


def test_it_starts_once() -> None:
    cudnn.start.cache_clear()
    (device,) = jax.devices("cpu")[:1]
    cudnn.start(device)
    cudnn.start(device)
    assert cudnn.start.cache_info().misses == 1
