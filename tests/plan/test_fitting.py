"""What a message adds about an array that does not fit."""

import numpy as np

from jaxdelegate.plan.fitting import remedy, resize

F32 = np.dtype(np.float32)
IMAGE = (1, 8, 8, 3)


def test_remedies() -> None:
    assert "astype('float32')" in remedy(np.dtype(np.float64), IMAGE, F32, IMAGE)
    assert remedy(np.dtype(np.uint8), IMAGE, F32, IMAGE) == ""  # it may mean another scale
    assert "np.newaxis" in remedy(F32, (8, 8, 3), F32, (-1, 8, 8, 3))
    assert "transpose(0, 2, 3, 1)" in remedy(F32, (1, 3, 8, 8), F32, IMAGE)
    assert remedy(F32, (4, 8, 8, 3), F32, IMAGE) == ""  # the caller may have resized it already
    assert remedy(F32, IMAGE, F32, IMAGE) == ""


def test_another_batch_is_a_matter_of_resizing() -> None:
    assert resize((4, 8, 8, 3), IMAGE).endswith("call resize_tensor_input with [4, 8, 8, 3] first")
    assert resize(IMAGE, IMAGE) == resize((4, 9, 8, 3), IMAGE) == resize((4,), IMAGE) == ""
