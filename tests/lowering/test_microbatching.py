"""Large batches in microbatches: which partitions, how many images, and the same values."""

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.lowering import microbatching
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import ConcatenationOptions, NoOptions
from jaxdelegate.op_lowering.spec import TensorSpec

BATCH = 8
IMAGE = (BATCH, 64, 64, 8)
FLOAT = np.dtype(np.float32)
NO_OPTIONS = NoOptions()


def run(content: bytes, images: np.ndarray) -> np.ndarray:
    interpreter = jd.Interpreter(
        model_content=content, experimental_delegates=[jd.JaxDelegate(platform="cpu")]
    )
    interpreter.resize_tensor_input(0, images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, images)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def test_a_network_in_microbatches_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    content = mobilenet_v1(size=32, width=0.25, classes=10)
    images = np.random.default_rng(0).normal(size=(6, 32, 32, 3)).astype(np.float32)
    alone = np.concatenate([run(content, image[None]) for image in images])
    seen: list[int] = []

    def spied(*args: object) -> microbatching.Microbatches | None:
        found = original(*args)
        seen.append(1 if found is None else found.count)
        return found

    original = microbatching.microbatches
    monkeypatch.setattr(microbatching, "microbatches", spied)
    for least, count in ((1 << 30, 1), (70_000, 3), (1, 6)):
        monkeypatch.setattr(microbatching, "_MICROBATCH_BYTES", least)
        np.testing.assert_allclose(run(content, images), alone, rtol=1e-4, atol=1e-6)
        assert seen.pop() == count
        (y,) = jd.load(content)(images)
        np.testing.assert_allclose(y, alone, rtol=1e-4, atol=1e-6)
        assert seen.pop() == count


def constant(name: str, values: object) -> TensorSpec:
    array = np.asarray(values)
    return TensorSpec(name, array.shape, array.dtype, const=array)


def microbatches_of(
    name: str, others: list[TensorSpec], y: tuple[int, ...], *, shape=IMAGE, options=NO_OPTIONS
) -> microbatching.Microbatches | None:
    """The microbatches of one operator: x and `others` to `y`."""
    specs = {0: TensorSpec("x", shape, FLOAT), 99: TensorSpec("y", y, FLOAT)}
    specs |= {1 + i: other for i, other in enumerate(others)}
    live = [i for i, spec in specs.items() if spec.const is None and i != 99]
    inputs = (0, *range(1, 1 + len(others)))
    operator = Operator(
        index=0, name=name, builtin_code=0, inputs=inputs, outputs=(99,), options=options
    )
    return microbatching.microbatches([operator], specs, live, [99])


ROWS = (BATCH * 64 * 64, 8)
SAME = TensorSpec("z", IMAGE, FLOAT)


@pytest.fixture(autouse=True)
def _small_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        microbatching, "_MICROBATCH_BYTES", 1 << 19
    )  # of images of 128 KiB: two in a turn


@pytest.mark.parametrize(
    ("name", "others", "y", "options"),
    [
        ("RELU6", [], IMAGE, NO_OPTIONS),
        ("ADD", [SAME], IMAGE, NO_OPTIONS),
        ("MUL", [constant("scale", np.ones(8, np.float32))], IMAGE, NO_OPTIONS),
        ("MEAN", [constant("axes", [1, -2])], IMAGE, NO_OPTIONS),
        ("ARG_MAX", [constant("axis", -1)], IMAGE, NO_OPTIONS),
        ("PAD", [constant("edges", [[0, 0], [1, 1], [1, 1], [0, 0]])], IMAGE, NO_OPTIONS),
        ("TRANSPOSE", [constant("order", [0, 2, 1, 3])], IMAGE, NO_OPTIONS),
        ("RESHAPE", [constant("shape", [BATCH * 64, 64 * 8])], (BATCH * 64, 512), NO_OPTIONS),
        ("CONCATENATION", [SAME], (BATCH, 64, 64, 16), ConcatenationOptions(axis=-1)),
        ("FULLY_CONNECTED", [constant("w", np.ones((8, 8), np.float32))], ROWS, NO_OPTIONS),
    ],
)
def test_operators_that_compute_images_by_themselves(name, others, y, options) -> None:
    found = microbatches_of(name, others, y, options=options)
    assert found is not None
    size = BATCH // found.count
    assert 1 <= size < BATCH
    assert found.specs[0].shape == (size, *IMAGE[1:])
    assert found.specs[99].shape == (y[0] // BATCH * size, *y[1:])


@pytest.mark.parametrize(
    ("name", "others", "y", "options"),
    [
        ("CUMSUM", [constant("axis", 0)], IMAGE, NO_OPTIONS),
        ("MEAN", [constant("axes", [0, 1])], IMAGE, NO_OPTIONS),
        ("ARG_MAX", [constant("axis", 0)], IMAGE[1:], NO_OPTIONS),
        ("MEAN", [constant("axes", [-4])], IMAGE, NO_OPTIONS),
        ("PAD", [constant("edges", [[8, 0], [0, 0], [0, 0], [0, 0]])], IMAGE, NO_OPTIONS),
        ("TRANSPOSE", [constant("order", [1, 0, 2, 3])], IMAGE, NO_OPTIONS),
        ("RESHAPE", [constant("shape", [4, -1])], (4, 64 * 64 * 16), NO_OPTIONS),
        ("CONCATENATION", [SAME], (2 * BATCH, 64, 64, 8), ConcatenationOptions(axis=0)),
        ("ADD", [constant("other", np.ones(IMAGE, np.float32))], IMAGE, NO_OPTIONS),
        ("SOFTMAX", [], (BATCH,), NO_OPTIONS),
        ("FULLY_CONNECTED", [constant("w", np.ones((8, 16), np.float32))], ROWS, NO_OPTIONS),
        ("ADD", [TensorSpec("one", (1, 64, 64, 8), FLOAT)], IMAGE, NO_OPTIONS),
    ],
)
def test_operators_that_mix_images_run_at_once(name, others, y, options) -> None:
    shape = (BATCH,) if name == "SOFTMAX" else IMAGE
    assert microbatches_of(name, others, y, options=options, shape=shape) is None


def test_small_batches_run_at_once() -> None:
    assert microbatches_of("RELU", [], (2, 64, 64, 8), shape=(2, 64, 64, 8)) is None
    assert microbatches_of("RELU", [], (1, 256, 256, 8), shape=(1, 256, 256, 8)) is None
    assert microbatches_of("RELU", [], (0, 64, 64, 8), shape=(0, 64, 64, 8)) is None
