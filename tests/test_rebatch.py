"""JaxDelegate(rebatch=True): a model resized to a batch of n computes n single runs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.errors import DelegationError, InterpreterError, OptionError
from jaxdelegate.op_lowering.options import (
    FullyConnectedOptions,
    RandomOptions,
    ReshapeOptions,
    VarHandleOptions,
)
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.xla import aot, over_slices
from tests.support.detectors import color_detector

MODELS = Path(__file__).parents[1].parent / "shared" / "models" / "networks"
N = 3
Arrays = Sequence[np.ndarray]


def opened(model: bytes | Path, *, rebatch: bool = True, **options: Any) -> jd.Interpreter:
    delegate = jd.JaxDelegate(platform="cpu", rebatch=rebatch, **options)
    content = model if isinstance(model, bytes) else model.read_bytes()
    return jd.Interpreter(model_content=content, experimental_delegates=[delegate])


def run(interpreter: jd.Interpreter, arrays: Arrays) -> list[np.ndarray]:
    """Resize the inputs to these arrays, run, and return the outputs."""
    inputs = interpreter.get_input_details()
    for detail, array in zip(inputs, arrays, strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    for detail, array in zip(inputs, arrays, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    outputs = interpreter.get_output_details()
    found = [interpreter.get_tensor(d["index"]) for d in outputs]
    assert [tuple(d["shape"]) for d in outputs] == [y.shape for y in found]
    return found


def one_by_one(model: bytes | Path, arrays: Arrays, **options: Any) -> list[np.ndarray]:
    """Single runs; the first dimension of arrays is the batch, except for scalars."""
    interpreter = opened(model, rebatch=False, **options)
    runs = [run(interpreter, [a[k : k + 1] if a.ndim else a for a in arrays]) for k in range(N)]
    return [_together(results) for results in zip(*runs, strict=True)]


def _together(results: Sequence[np.ndarray]) -> np.ndarray:
    return (np.concatenate if results[0].shape[:1] == (1,) else np.stack)(results)


def check(model: bytes | Path, arrays: Arrays, **options: Any) -> jd.Interpreter:
    """Check that a batch is computed as single runs, bit for bit."""
    interpreter = opened(model, **options)
    got, want = run(interpreter, arrays), one_by_one(model, arrays, **options)
    for y, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(y, expected, strict=True)
    assert interpreter._why_rebatched() is not None
    return interpreter


# ---- small graphs


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def reshape(builder: ModelBuilder, x: int, target: Sequence[int], y: int) -> int:
    size = builder.constant(np.array(target, np.int32))
    builder.operator("RESHAPE", [x, size], [y], ReshapeOptions(new_shape=tuple(target)))
    return y


def classifier(target: tuple[int, ...] = (1, 32), *, quantized: bool = False) -> bytes:
    """[1, 2, 2, 8] -> RESHAPE to `target` -> FULLY_CONNECTED -> [1, 5]."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()

    def grid(scale: float) -> dict[str, Any]:
        if not quantized:
            return {}
        return {"quantization": Quantization(np.array([scale], np.float32), np.array([0]))}

    dtype = np.int8 if quantized else np.float32
    x = builder.input((1, 2, 2, 8), dtype, "x", **grid(0.05))
    flat = reshape(builder, x, target, builder.tensor((1, 32), dtype, **grid(0.05)))
    values = rng.normal(size=(5, 32))
    weights = np.round(values * 40).astype(np.int8) if quantized else values.astype(np.float32)
    w = builder.constant(weights, **grid(0.02))
    y = builder.tensor((1, 5), dtype, "y", **grid(0.1))
    builder.operator("FULLY_CONNECTED", [flat, w], [y], FullyConnectedOptions())
    builder.outputs(y)
    return builder.build()


def mixing(*, out: tuple[int, ...] = (1, 8, 4)) -> bytes:
    """[1, 2, 2, 8] -> all anchors of all images, [1, -1, 4], as in some detectors."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 2, 8), np.float32, "x")
    anchors = reshape(builder, x, (*out[:-2], -1, 4), builder.tensor(out))
    y = builder.tensor(out)
    builder.operator("TANH", [anchors], [y])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("quant_mode", ["float_view", "integer"])
@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
def test_a_reshape_to_constant_sizes(
    quantized: bool, quant_mode: str, rng: np.random.Generator
) -> None:
    x = floats(rng, N, 2, 2, 8)
    x = (x * 30).astype(np.int8) if quantized else x
    check(classifier(quantized=quantized), [x], quant_mode=quant_mode)


def test_a_reshape_that_would_mix_images(rng: np.random.Generator) -> None:
    x = floats(rng, N, 2, 2, 8)
    (y,) = run(opened(mixing(), rebatch=False), [x])
    assert y.shape == (1, N * 8, 4)  # as in LiteRT
    check(mixing(), [x])


def test_an_output_without_batch_axis(rng: np.random.Generator) -> None:
    interpreter = check(mixing(out=(8, 4)), [floats(rng, N, 2, 2, 8)])
    assert interpreter.get_output_details()[0]["shape"].tolist() == [N, 8, 4]


def test_a_graph_that_accepts_the_batch_runs_once(rng: np.random.Generator) -> None:
    interpreter = opened(classifier((-1, 32)))
    x = floats(rng, N, 2, 2, 8)
    (y,) = run(interpreter, [x])
    assert interpreter._why_rebatched() is None
    np.testing.assert_allclose(y, one_by_one(classifier((-1, 32)), [x])[0], rtol=1e-5, atol=1e-6)


def test_a_constant_made_from_the_batch_size(rng: np.random.Generator) -> None:
    """x times its shape computes each image independently, but differs for a single image."""
    builder = ModelBuilder()
    x = builder.input((1, 2), np.float32, "x")
    shape, factors = builder.tensor((2,), np.int32), builder.tensor((2,))
    builder.operator("SHAPE", [x], [shape])
    builder.operator("CAST", [shape], [factors])
    y = builder.tensor((1, 2))
    builder.operator("MUL", [x, factors], [y])
    builder.outputs(y)
    interpreter = check(builder.build(), [floats(rng, N, 2)])
    assert "node 2 (MUL)" in str(interpreter._why_rebatched())


def test_a_reshape_that_differs_for_a_single_image(rng: np.random.Generator) -> None:
    """With shape [2, -1], rows are the images of a batch of two, but halves of a single image."""
    builder = ModelBuilder()
    x = builder.input((1, 8), np.float32, "x")
    halves = reshape(builder, x, (2, -1), builder.tensor((2, 4)))
    y = builder.tensor((2, 4))
    builder.operator("SOFTMAX", [halves], [y])
    builder.outputs(y)
    images = floats(rng, 2, 8)
    (got,) = run(opened(builder.build()), [images])
    single = opened(builder.build(), rebatch=False)
    want = np.stack([run(single, [image[None]])[0] for image in images])
    np.testing.assert_array_equal(got, want, strict=True)


def shared_input(*, threshold: tuple[int, ...] = ()) -> bytes:
    """A reshape that fixes 1, then a product with a scalar input."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 2, 8), np.float32, "x")
    s = builder.input(threshold, np.float32, "s")
    flat = reshape(builder, x, (1, 32), builder.tensor((1, 32)))
    y = builder.tensor((1, 32))
    builder.operator("MUL", [flat, s], [y])
    builder.outputs(y)
    return builder.build()


def test_a_scalar_is_shared(rng: np.random.Generator) -> None:
    interpreter = check(shared_input(), [floats(rng, N, 2, 2, 8), np.float32(2.5).reshape(())])
    assert interpreter.get_input_details()[1]["shape"].tolist() == []


def test_all_inputs_have_to_be_resized_alike(rng: np.random.Generator) -> None:
    model = shared_input(threshold=(1, 1))
    check(model, [floats(rng, N, 2, 2, 8), floats(rng, N, 1)])
    interpreter = opened(model)
    interpreter.resize_tensor_input(0, [N, 2, 2, 8])
    with pytest.raises(InterpreterError, match=r"0 'x' \[3, 2, 2, 8\], 1 's' \[1, 1\]"):
        interpreter.allocate_tensors()


def test_a_constant_output_is_repeated() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 6), np.float32, "x")
    y, shape = reshape(builder, x, (1, 6), builder.tensor((1, 6))), builder.tensor((2,), np.int32)
    builder.operator("SHAPE", [x], [shape])
    builder.outputs(y, shape)
    images = np.arange(N * 6, dtype=np.float32).reshape(N, 6)
    got = run(opened(builder.build()), [images])
    np.testing.assert_array_equal(got[0], images)
    np.testing.assert_array_equal(got[1], [[1, 6]] * N)


def test_batches_one_after_the_other(rng: np.random.Generator) -> None:
    """Larger, smaller, one, and empty batches, with a failure in between."""
    model = classifier()
    interpreter, single = opened(model), opened(model, rebatch=False)
    for n in (4, 2, 1, 0, 5):
        x = floats(rng, n, 2, 2, 8)
        (y,) = run(interpreter, [x])
        want = [run(single, [image[None]])[0][0] for image in x]
        np.testing.assert_array_equal(y, np.array(want, np.float32).reshape(n, 5))
        interpreter.resize_tensor_input(0, [n, 2, 2, 7])
        with pytest.raises(InterpreterError, match="RESHAPE"):
            interpreter.allocate_tensors()


def test_signature_runners(rng: np.random.Generator) -> None:
    builder = ModelBuilder()
    x = builder.input((1, 2, 2, 8), np.float32, "x")
    y = reshape(builder, x, (1, 32), builder.tensor((1, 32)))
    z = builder.tensor((1, 32))
    builder.operator("TANH", [y], [z])
    builder.outputs(z)
    builder.signature("serving_default", {"image": x}, {"row": z})
    runner = opened(builder.build()).get_signature_runner()
    images = floats(rng, N, 2, 2, 8)
    np.testing.assert_allclose(
        runner(image=images)["row"], np.tanh(images.reshape(N, 32)), rtol=1e-6
    )
    assert runner.get_output_details()["row"]["shape"].tolist() == [N, 32]


def test_intermediate_tensors(rng: np.random.Generator) -> None:
    """They have no value; if preserved, they have the values of all runs."""
    x = floats(rng, N, 2, 2, 8)
    interpreter = check(classifier(), [x])
    flat = 1
    with pytest.raises(jd.TensorError, match="intermediates need experimental_preserve"):
        interpreter.get_tensor(flat)
    delegate = jd.JaxDelegate(platform="cpu", rebatch=True)
    preserving = jd.Interpreter(
        model_content=classifier(),
        experimental_delegates=[delegate],
        experimental_preserve_all_tensors=True,
    )
    run(preserving, [x])
    by_name = {d["name"]: d["index"] for d in preserving.get_tensor_details()}
    assert by_name["t1"] == flat
    np.testing.assert_array_equal(preserving.get_tensor(flat), x.reshape(N, 32))


def test_donated_inputs(rng: np.random.Generator) -> None:
    check(mixing(), [floats(rng, N, 2, 2, 8)], donate_inputs=True)


# ---- state


def recurrent() -> bytes:
    """An RNN with its state in a variable tensor, after a reshape that fixes 1."""
    rng = np.random.default_rng(5)
    builder = ModelBuilder()
    x = builder.input((1, 2, 4), np.float32, "x")
    flat = reshape(builder, x, (1, 8), builder.tensor((1, 8)))
    w_in, w_state = (builder.constant(floats(rng, 8, 8)) for _ in "ab")
    bias = builder.constant(np.zeros(8, np.float32))
    state, y = builder.tensor((1, 8), name="h", is_variable=True), builder.tensor((1, 8))
    builder.operator("RNN", [flat, w_in, w_state, bias, state], [y])
    builder.outputs(y)
    return builder.build()


def test_every_item_has_its_own_state(rng: np.random.Generator) -> None:
    interpreter, steps = opened(recurrent()), [floats(rng, N, 2, 4) for _ in range(3)]
    got = [run(interpreter, [x])[0] for x in steps]
    for k in range(N):
        single = opened(recurrent(), rebatch=False)
        for x, y in zip(steps, got, strict=True):
            np.testing.assert_array_equal(y[k], run(single, [x[k : k + 1]])[0][0])
    assert not np.array_equal(got[0], run(interpreter, [steps[0]])[0])
    interpreter.reset_all_variables()
    np.testing.assert_array_equal(got[0], run(interpreter, [steps[0]])[0])
    state = next(d for d in interpreter.get_tensor_details() if d["name"] == "h")
    assert state["shape"].tolist() == [N, 8]


def test_programs_with_states_are_stored(
    tmp_path: Path, rng: np.random.Generator, forget_models: Callable[[], None]
) -> None:
    steps = [floats(rng, N, 2, 4) for _ in range(2)]
    found = []
    for loaded in (0, 1):
        interpreter = opened(recurrent(), serialization_dir=str(tmp_path / "programs"))
        found.append([run(interpreter, [x])[0] for x in steps])
        assert interpreter._delegates[0].programs.statistics.loaded == loaded
        forget_models()
    np.testing.assert_array_equal(*found)


def drawing() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 2, 4), np.float32, "x")
    shape, noise = builder.constant(np.array([1, 8], np.int32)), builder.tensor((1, 8))
    builder.operator("RANDOM_UNIFORM", [shape], [noise], RandomOptions(seed=3, seed2=7))
    y = builder.tensor((1, 8))
    flat = reshape(builder, x, (1, 8), builder.tensor((1, 8)))
    builder.operator("ADD", [flat, noise], [y])
    builder.outputs(y)
    return builder.build()


def counting() -> bytes:
    """y = variable + x, which is assigned to the resource variable."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 4), np.float32, "x")
    flat = reshape(builder, x, (1, 8), builder.tensor((1, 8)))
    handle, value = builder.tensor((1,), np.dtype("V4")), builder.tensor((1, 8), name="value")
    y = builder.tensor((1, 8))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="v"))
    builder.operator("READ_VARIABLE", [handle], [value])
    builder.operator("ADD", [value, flat], [y])
    builder.operator("ASSIGN_VARIABLE", [handle, y], [])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize(
    ("model", "state"), [(drawing, "RANDOM_UNIFORM.0/state"), (counting, "value/variable")]
)
def test_hidden_state_is_rejected(model: Callable[[], bytes], state: str) -> None:
    interpreter = opened(model())
    interpreter.resize_tensor_input(0, [N, 2, 4])
    with pytest.raises(InterpreterError, match=rf"'{state}': state that.*\.batched\(n\)"):
        interpreter.allocate_tensors()


# ---- unsupported uses


def partly() -> bytes:
    """A model with UNIQUE, whose result shape depends on data and which stays on the host."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 4), np.float32, "x")
    flat = reshape(builder, x, (8,), builder.tensor((8,)))
    values, where = builder.tensor((8,)), builder.tensor((8,), np.int32)
    builder.operator("UNIQUE", [flat], [values, where])
    builder.outputs(values, where)
    return builder.build()


def test_the_whole_graph_must_be_delegated() -> None:
    interpreter = opened(partly())
    interpreter.resize_tensor_input(0, [N, 2, 4])
    with pytest.raises(DelegationError, match=r"whole graph as one partition, but(.|\n)*UNIQUE: "):
        interpreter.allocate_tensors()
    interpreter.resize_tensor_input(0, [1, 2, 4])  # a single image still runs
    interpreter.allocate_tensors()
    interpreter.invoke()


def test_operators_of_another_delegate_stay_outside() -> None:
    class Kernel(jd.SimpleDelegateKernel):
        init = prepare = eval = lambda *_: None

    class Tanh(jd.SimpleDelegate):
        name = "Tanh"

        def is_node_supported(self, node: Any) -> bool:
            return bool(node.name == "TANH")

        def create_kernel(self) -> Kernel:
            return Kernel()

    both = [Tanh(), jd.JaxDelegate(platform="cpu", rebatch=True)]
    interpreter = jd.Interpreter(model_content=mixing(), experimental_delegates=both)
    interpreter.resize_tensor_input(0, [N, 2, 2, 8])
    with pytest.raises(DelegationError, match="taken by Tanh"):
        interpreter.allocate_tensors()


def test_without_the_option_the_error_names_it() -> None:
    for delegates in ([], [jd.JaxDelegate(platform="cpu")]):
        interpreter = jd.Interpreter(model_content=classifier(), experimental_delegates=delegates)
        interpreter.resize_tensor_input(0, [N, 2, 2, 8])
        with pytest.raises(InterpreterError, match=r"use JaxDelegate\(rebatch=True\)"):
            interpreter.allocate_tensors()
        interpreter.resize_tensor_input(0, [1, 2, 2, 7])  # no batch
        with pytest.raises(InterpreterError, match="declares") as caught:
            interpreter.allocate_tensors()
        assert "rebatch" not in str(caught.value)


def cell() -> bytes:
    """An RNN whose state fixes a batch of 1."""
    builder = ModelBuilder()
    x, y = builder.input((1, 4), name="x"), builder.tensor((1, 4))
    weights = [builder.constant(np.eye(4, dtype=np.float32)) for _ in "ab"]
    bias = builder.constant(np.zeros(4, np.float32))
    state = builder.tensor((1, 4), name="h", is_variable=True)
    builder.operator("RNN", [x, *weights, bias, state], [y])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("opened", ["ours", "load", "stock"])
def test_a_state_that_fixes_the_batch_is_named_with_what_helps(opened: str) -> None:
    def run_batch() -> None:
        if opened == "load":
            jd.load(cell())(np.ones((N, 4), np.float32))
        kind = {"ours": jd.Interpreter, "stock": StockInterpreter}[opened]
        delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
        interpreter = kind(model_content=cell(), experimental_delegates=[delegate])
        interpreter.resize_tensor_input(0, [N, 4])
        interpreter.allocate_tensors()

    with pytest.raises(RuntimeError) as caught:
        run_batch()
    text = str(caught.value)
    assert f"its state 'h' is [1, 4], expected [{N}, 4] for a batch of {N}" in text
    remedies = "JaxDelegate(rebatch=True) in jaxdelegate.Interpreter", "load(model).batched(n)"
    assert all(remedy in text for remedy in remedies)


def test_stock_interpreters_reject_it() -> None:
    with pytest.raises(
        OptionError, match=r"rebatch: a stock interpreter .*jaxdelegate\.Interpreter"
    ):
        StockInterpreter(
            model_content=classifier(),
            experimental_delegates=[jd.JaxDelegate(platform="cpu", rebatch=True)],
        )


# ---- programs


def test_stored_programs(tmp_path: Path, rng: np.random.Generator) -> None:
    """Rebatched programs are stored separately from single ones, and starts use the right one."""
    x, model = floats(rng, N, 2, 2, 8), tmp_path / "model.tflite"
    model.write_bytes(mixing())
    seen = set()
    for rebatch, n in ((False, 1), (True, N), (False, N), (True, 2)) * 2:
        delegate = jd.JaxDelegate(
            platform="cpu", rebatch=rebatch, serialization_dir=str(tmp_path / "programs")
        )
        interpreter = jd.Interpreter(str(model), experimental_delegates=[delegate])
        (y,) = run(interpreter, [x[:n]])
        assert y.shape == ((n, 8, 4) if rebatch else (1, n * 8, 4))
        np.testing.assert_allclose(y.reshape(n, 8, 4), np.tanh(x[:n].reshape(n, 8, 4)), rtol=1e-5)
        assert delegate.programs is not None
        statistics, is_old = delegate.programs.statistics, (rebatch, n) in seen
        assert (statistics.stored, statistics.loaded) == (int(not is_old), int(is_old))
        seen.add((rebatch, n))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectorizes over the items, as on a GPU."""

    def vectorized(call: Any, slices: Any, ends: Any, **_: Any) -> Any:
        return over_slices.over_slices(call, slices, ends, at_once=True)

    monkeypatch.setattr(aot, "over_slices", vectorized)


@pytest.mark.usefixtures("at_once")
def test_all_runs_at_once(rng: np.random.Generator) -> None:
    arrays = [floats(rng, N, 2, 2, 8), np.float32(2.5).reshape(())]
    interpreter = opened(shared_input())
    (y,) = run(interpreter, arrays)
    np.testing.assert_allclose(y, arrays[0].reshape(N, 32) * 2.5, rtol=1e-6)
    (program,) = [p.program for p in interpreter._delegates[0].partitions()]
    assert "while" not in program.executable.as_text()


@pytest.mark.usefixtures("at_once")
def test_all_states_at_once(rng: np.random.Generator) -> None:
    x = floats(rng, N, 2, 4)
    interpreter, single = opened(recurrent()), opened(recurrent(), rebatch=False)
    for _ in range(2):
        (y,) = run(interpreter, [x])
        np.testing.assert_allclose(y[:1], run(single, [x[:1]])[0], rtol=1e-5, atol=1e-6)


def test_a_detector(rng: np.random.Generator) -> None:
    """Boxes, classes, scores and a count [1] from TFLite_Detection_PostProcess."""
    model = color_detector()
    size = jd.Interpreter(model_content=model).get_input_details()[0]["shape"]
    interpreter = check(model, [rng.uniform(-1, 1, (N, *size[1:])).astype(np.float32)])
    assert interpreter.get_output_details()[3]["shape"].tolist() == [N]


# ---- real models


def images_for(path: Path, rng: np.random.Generator) -> np.ndarray:
    if not path.exists():
        pytest.skip("the real models are not here")
    (detail,) = jd.Interpreter(str(path)).get_input_details()
    shape = (N, *detail["shape"][1:])
    if detail["dtype"] == np.float32:
        return rng.uniform(-1, 1, shape).astype(np.float32)
    return rng.integers(0, 256, shape).astype(detail["dtype"])


@pytest.mark.slow
@pytest.mark.parametrize("quant_mode", ["float_view", "integer"])
@pytest.mark.parametrize(
    "name",
    [
        "coco_ssd_mobilenet_v1_1.0_quant_2018_06_29_no_metadata",
        pytest.param("mobilenet_v1_0.25_224_quant", marks=pytest.mark.exhaustive),
        pytest.param("deeplabv3_mnv2_dm05_pascal_quant", marks=pytest.mark.exhaustive),
    ],
)
def test_real_quantized_models(name: str, quant_mode: str, rng: np.random.Generator) -> None:
    path = MODELS / f"{name}.tflite"
    x = images_for(path, rng)
    got = run(opened(path, quant_mode=quant_mode), [x])
    for y, expected in zip(got, one_by_one(path, [x], quant_mode=quant_mode), strict=True):
        np.testing.assert_array_equal(y, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mobilenet_v1_0.25_224_1_default_1", "image_segmenter__deeplabv3"]
)
def test_real_float_models(name: str, rng: np.random.Generator) -> None:
    path = MODELS / f"{name}.tflite"
    x = images_for(path, rng)
    got = run(opened(path), [x])
    for y, expected in zip(got, one_by_one(path, [x]), strict=True):
        np.testing.assert_allclose(y, expected, atol=1e-5 * np.abs(expected).max())
