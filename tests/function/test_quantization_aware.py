"""Quantization-aware training: weights on their grids, scales that are learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from ai_edge_litert import interpreter as litert

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    AddOptions,
    ConcatenationOptions,
    Conv2DOptions,
    FullyConnectedOptions,
    Padding,
    Pool2DOptions,
    ReshapeOptions,
    SoftmaxOptions,
    WhileOptions,
)
from jaxdelegate.quant import affine
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from sample_tasks.tasks import TASKS
from tests.function.graphs import shared_zeros
from tests.support.quantized import scaled

pytestmark = pytest.mark.usefixtures("compiled_once")

MODELS = Path(__file__).parents[3] / "shared" / "models"
TRAINED: dict[str, Any] = {"io": "float", "weights": "fake_quantized"}
LEARNED: dict[str, Any] = {**TRAINED, "ranges": "learned"}

KEPT = pytest.param("kept", marks=pytest.mark.exhaustive)


def integers(dtype: Any, *shape: int, low: int = -127, high: int = 128) -> np.ndarray:
    return np.random.default_rng(shape).integers(low, high, shape).astype(dtype)


def small_network() -> bytes:
    """int8 throughout: CONV_2D -> MAX_POOL_2D -> RESHAPE -> FULLY_CONNECTED -> SOFTMAX."""
    b = ModelBuilder()
    x_scale, f_scale, w_scale = np.float32(0.02), np.float32(0.05), np.float32(0.01)
    filters = scaled([0.01, 0.02, 0.005])
    x = b.input((1, 4, 4, 2), np.int8, "image", quantization=scaled(x_scale, 3))
    w = b.constant(integers(np.int8, 3, 3, 3, 2), "filter", quantization=filters)
    sums = scaled(filters.scale * x_scale)
    c = b.constant(integers(np.int32, 3, low=-900, high=900), "bias", quantization=sums)
    features = b.tensor((1, 4, 4, 3), np.int8, "features", quantization=scaled(f_scale, -20))
    options = Conv2DOptions(padding=Padding.SAME, stride_h=1, stride_w=1)
    b.operator("CONV_2D", [x, w, c], [features], options, version=3)
    pooled = b.tensor((1, 2, 2, 3), np.int8, "pooled", quantization=scaled(f_scale, -20))
    window = Pool2DOptions(filter_height=2, filter_width=2, stride_h=2, stride_w=2)
    b.operator("MAX_POOL_2D", [features], [pooled], window, version=2)
    flat = b.tensor((1, 12), np.int8, "flat", quantization=scaled(f_scale, -20))
    rows = b.constant(np.array([-1, 12], np.int32))
    b.operator("RESHAPE", [pooled, rows], [flat], ReshapeOptions(new_shape=(-1, 12)))
    head = b.constant(integers(np.int8, 5, 12), "head", quantization=scaled(w_scale))
    total = scaled(f_scale * w_scale)
    d = b.constant(integers(np.int32, 5, low=-900, high=900), "offset", quantization=total)
    logits = b.tensor((1, 5), np.int8, "logits", quantization=scaled(0.1, 4))
    b.operator("FULLY_CONNECTED", [flat, head, d], [logits], FullyConnectedOptions(), version=4)
    y = b.tensor((1, 5), np.int8, "scores", quantization=scaled(1 / 256, -128))
    b.operator("SOFTMAX", [logits], [y], SoftmaxOptions(beta=1.0), version=2)
    b.outputs(y)
    return b.build()


IMAGES = np.random.default_rng(0).uniform(-2.5, 2.5, (8, 4, 4, 2)).astype(np.float32)


def layer(w: Any, q: Quantization, *, data: Any = np.float32, bias: Any = None) -> bytes:
    """One FULLY_CONNECTED of 64 inputs with these weights."""
    b = ModelBuilder()
    kinds = {np.int8: (scaled(0.05, 3), scaled(0.3, -2)), np.uint8: (scaled(0.05, 3), scaled(0.3))}
    kinds[np.int16] = (scaled(1e-4), scaled(1e-3))
    of_x, of_y = kinds.get(data, (None, None))
    x = b.input((1, 64), data, "x", quantization=of_x)
    weights = b.constant(w, "w", quantization=q)
    inputs = [x, weights, None]
    if bias is not None:
        assert of_x is not None
        sums = scaled(q.scale * of_x.scale[0])
        inputs[2] = b.constant(integers(bias, len(w), low=-999), "b", quantization=sums)
    y = b.tensor((1, len(w)), data, "y", quantization=of_y)
    b.operator("FULLY_CONNECTED", inputs, [y], FullyConnectedOptions(), version=12)
    b.outputs(y)
    return b.build()


def weight_only() -> bytes:
    """int8 weights that a DEQUANTIZE makes float."""
    b = ModelBuilder()
    x, w = b.input((1, 64), name="x"), integers(np.int8, 4, 64)
    stored = b.constant(w, "w", quantization=scaled([0.1, 0.2, 0.3, 0.4]))
    wide, y = b.tensor((4, 64), name="wide"), b.tensor((1, 4), name="y")
    b.operator("DEQUANTIZE", [stored], [wide], version=2)
    b.operator("FULLY_CONNECTED", [x, wide, None], [y], FullyConnectedOptions())
    b.outputs(y)
    return b.build()


def looping() -> bytes:
    """Three times x = FULLY_CONNECTED(x) in int8, in the body of a WHILE."""
    b, q = ModelBuilder(), scaled(0.05, 3)
    i, x = b.constant(np.int32(0)), b.input((1, 4), np.int8, "x", quantization=q)
    n, y = b.tensor((), np.int32), b.tensor((1, 4), np.int8, "y", quantization=q)
    b.operator("WHILE", [i, x], [n, y], WhileOptions(cond_subgraph_index=1, body_subgraph_index=2))
    b.outputs(y)
    c = b.subgraph("condition")
    j, _ = c.input((), np.int32), c.input((1, 4), np.int8, quantization=q)
    less = c.tensor((), np.bool_)
    c.operator("LESS", [j, c.constant(np.int32(3))], [less])
    c.outputs(less)
    g = b.subgraph("body")
    j, z = g.input((), np.int32), g.input((1, 4), np.int8, "z", quantization=q)
    w = g.constant(integers(np.int8, 4, 4), "w", quantization=scaled([0.01, 0.02, 0.01, 0.005]))
    more = g.tensor((), np.int32)
    g.operator("ADD", [j, g.constant(np.int32(1))], [more], AddOptions())
    between = g.tensor((1, 4), np.int8, "between", quantization=scaled(0.08, 1))
    after = g.tensor((1, 4), np.int8, "after", quantization=q)
    g.operator("FULLY_CONNECTED", [z, w, None], [between], FullyConnectedOptions(), version=5)
    g.operator("QUANTIZE", [between], [after], version=2)
    g.outputs(more, after)
    return b.build()


def blocks() -> Quantization:
    sizes = np.random.default_rng(0).uniform(0.01, 0.1, (4, 2)).astype(np.float16)
    kept = Blockwise(-1, -1, 32, scale=sizes)
    return Quantization(np.zeros(0, np.float32), np.zeros(0, np.int64), 0, blockwise=kept)


CHANNELS = scaled([0.01, 0.02, 0.03, 0.04])
FILES: dict[str, Callable[[], bytes]] = {
    "int8": lambda: layer(integers(np.int8, 4, 64), CHANNELS, data=np.int8, bias=np.int32),
    "int8, one scale": lambda: layer(integers(np.int8, 4, 64), scaled(0.02), data=np.int8),
    "int8, all integers": lambda: layer(np.full((4, 64), -128, np.int8), CHANNELS, data=np.int8),
    "uint8": lambda: layer(
        integers(np.uint8, 4, 64, low=0, high=256), scaled(0.02, 117), data=np.uint8, bias=np.int32
    ),
    "16x8": lambda: layer(integers(np.int8, 4, 64), CHANNELS, data=np.int16, bias=np.int64),
    "int4": lambda: layer(integers(ml_dtypes.int4, 4, 64, low=-7, high=8), CHANNELS, data=np.int8),
    "int4 in blocks": lambda: layer(integers(ml_dtypes.int4, 4, 64, low=-7, high=8), blocks()),
    "dynamic range": lambda: layer(integers(np.int8, 4, 64), CHANNELS),
    "uint8 read as int8": lambda: layer(
        integers(np.uint8, 4, 64, low=0, high=256), scaled(0.02, 128)
    ),
    "weights only": weight_only,
    "in a loop": looping,
    "a network": small_network,
}


def inputs_of(apply: Any) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.uniform(-3, 3, s.shape).astype(s.dtype) for s in apply.inputs()]


def on_grid_by_hand(model: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Each leaf as a file would store and read it, computed with numpy only."""
    found = dict(params)
    for name, parameter in model.parameters.items():
        subgraph, index = parameter.tensors[0]
        data, q = model.graph.subgraphs[subgraph].tensors[index].data, parameter.quantization
        if q is None:
            continue
        if data.dtype == np.uint8 and q.zero_point[0] == 128:  # "uint8 read as int8"
            data, q = data.view(np.int8), scaled(q.scale)
        narrow = affine.is_narrow(data, q)
        leaf = np.asarray(params[name])
        found[name] = affine.dequantize(
            affine.quantize_weight(leaf, q, data.dtype, narrow=narrow), q
        )
    return found


# A network only has more of them.
LAYERS = [pytest.param(n, marks=[pytest.mark.exhaustive] * (n == "a network")) for n in FILES]


@pytest.mark.parametrize("name", LAYERS)
def test_weights_become_the_floats_that_their_integers_stand_for(name: str) -> None:
    model = jd.load(FILES[name]())
    apply, params = model.function(io="float")
    trained, same = model.function(**TRAINED)
    inputs = inputs_of(apply)
    assert set(same) == set(params)
    want = apply(params, *inputs)
    for got, y in zip(trained(params, *inputs), want, strict=True):
        np.testing.assert_array_equal(got, y)
    random = np.random.default_rng(2)
    moved = {
        n: np.float32(p + np.abs(p).max() * random.normal(scale=0.1, size=p.shape))
        for n, p in params.items()
    }
    hand = on_grid_by_hand(model, moved)
    assert any(not np.array_equal(hand[n], moved[n]) for n in moved)
    for got, y in zip(trained(moved, *inputs), apply(hand, *inputs), strict=True):
        np.testing.assert_array_equal(got, y)


@pytest.mark.parametrize("name", [p for p in LAYERS if p.values != ("int4 in blocks",)])
def test_the_files_scales_change_nothing(name: str) -> None:
    model = jd.load(FILES[name]())
    apply, params = model.function(io="float")
    inputs = inputs_of(apply)
    learned, more = model.function(**LEARNED)
    assert {n for n in more if n not in params} == set(model.scales)
    for got, y in zip(learned(more, *inputs), apply(params, *inputs), strict=True):
        np.testing.assert_array_equal(got, y)


@pytest.mark.parametrize("name", ["int8, one scale", "in a loop"])
def test_integers_come_and_go_by_the_learned_scales(name: str) -> None:
    """Weights are not rounded: their scales are not used, and are not leaves."""
    model = jd.load(FILES[name]())
    learned, params = model.function(ranges="learned")
    of_activations = {"x/scale", "between/scale" if name == "in a loop" else "y/scale"}
    assert {n for n in params if n.endswith("/scale")} == of_activations
    (given,) = learned.inputs()
    x = np.random.default_rng(0).integers(-128, 128, given.shape).astype(given.dtype)
    (got,), (want,) = learned(params, x), model(x)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    doubled = {n: p * np.float32(2 if n in of_activations else 1) for n, p in params.items()}
    np.testing.assert_array_equal(learned(doubled, x)[0], want)  # all is linear: other units


def test_a_weights_gradient_ends_at_its_range() -> None:
    model = jd.load(FILES["int8, one scale"]())
    trained, params = model.function(**TRAINED)
    x = np.full((1, 64), 0.4, np.float32)
    w = np.zeros_like(params["w"])
    scale = np.float32(0.02)
    w[0, :4] = [0.001, 127.4 * scale, 127 * scale, -130 * scale]
    slopes = jax.grad(lambda p: trained(p, x)[0][0, 0])({"w": w})["w"]
    np.testing.assert_allclose(slopes[0, :5], np.float32(0.4) * np.array([1, 0, 1, 0, 1]))
    assert not slopes[1].any()


def test_scales_have_lsqs_gradient() -> None:
    """Gradients of one value inside the range, and of some outside, computed by hand."""
    model = jd.load(FILES["int8, one scale"]())
    learned, params = model.function(**LEARNED)
    assert set(params) == {"w", "w/scale", "x/scale", "y/scale"}
    w = np.zeros((4, 64), np.float32)
    w[0, :3] = [0.033, 9.0, -9.0]  # of the scale 0.02: 1.65 steps, and beyond 127
    x = np.zeros((1, 64), np.float32)
    x[0, :3] = [1.0, 0.5, 0.25]
    scale = np.float32(0.02)
    slopes = jax.grad(lambda p: learned({**params, **p}, x)[0][0, 0])(
        {"w": w, "w/scale": params["w/scale"]}
    )
    own = (2 - 0.033 / scale) * 1.0 + 127 * 0.5 - 127 * 0.25
    y = float(learned({**params, "w": w}, x)[0][0, 0])
    assert -0.3 * 126 < y < 0.3 * 129  # inside of the output's range
    np.testing.assert_allclose(slopes["w/scale"], [own / np.sqrt(w.size * 127)], rtol=1e-4)


def test_an_activations_scale_has_lsqs_gradient() -> None:
    model = jd.load(FILES["int8, one scale"]())
    learned, params = model.function(**LEARNED)
    w = np.zeros((4, 64), np.float32)
    w[0, 0] = 1.0
    x = np.full((1, 64), 0.512, np.float32)
    for value, rounding in ((0.512, 10 - 0.512 / 0.05), (9.0, 124), (-9.0, -131)):
        x[0, 0] = value

        def loss(s: Any, x: Any = x) -> Any:
            return learned({**params, "w": w, "x/scale": s}, x)[0][0, 0]

        slope = jax.grad(loss)(params["x/scale"])
        np.testing.assert_allclose(slope, [rounding / np.sqrt(64 * 130)], rtol=1e-4)


def test_tensors_that_must_have_one_scale_share_a_leaf() -> None:
    model = jd.load(small_network())
    names = ["image", "features", "logits", "filter", "head"]
    assert list(model.scales) == [f"{name}/scale" for name in names]  # not of SOFTMAX, nor biases
    of = {
        model.graph.subgraphs[0].tensors[i].name for _, i in model.scales["features/scale"].tensors
    }
    assert of == {"features", "pooled", "flat"}
    assert model.scales["filter/scale"].value.shape == (3,)
    _, params = model.function(ranges="learned")
    assert "filter/scale" not in params  # it plays no part where weights are taken as they are
    looped = jd.load(looping()).scales
    assert list(looped) == ["x/scale", "between/scale", "w/scale"]
    assert {s for s, _ in looped["x/scale"].tensors} == {0, 1, 2}


def test_equal_scales_that_the_file_does_not_have_are_left_alone() -> None:
    b = ModelBuilder()
    x = b.input((1, 2), np.int8, "x", quantization=scaled(0.1))
    y = b.input((1, 2), np.int8, "y", quantization=scaled(0.2))
    z = b.tensor((1, 4), np.int8, "z", quantization=scaled(0.2))
    b.operator("CONCATENATION", [x, y], [z], ConcatenationOptions(axis=1), version=2)
    b.outputs(z)
    assert not jd.load(b.build()).scales


def test_a_bias_that_has_several_scales_stays_zero(tmp_path: Path) -> None:
    model = jd.load(shared_zeros())
    learned, params = model.function(**LEARNED)
    x = np.float32([[1, -2]])
    slopes = jax.grad(lambda p: (learned(p, x)[0] ** 2).sum())(params)
    assert not np.any(slopes["bias"])
    assert np.all(slopes["w0"] != 0)
    tuned = {name: leaf - 1e-3 * np.sign(slopes[name]) for name, leaf in params.items()}
    model.save(tmp_path / "m", tuned)
    same, stored = jd.load(tmp_path / "m").function(io="float")
    np.testing.assert_array_equal(same(stored, x)[0], learned(tuned, x)[0])


def test_the_sign_of_a_scale_does_not_count(tmp_path: Path) -> None:
    """Plain SGD takes scales below zero; clamped there, outputs would be constant for good."""
    model = jd.load(FILES["int8"]())
    learned, params = model.function(**LEARNED)
    x = np.ones((1, 64), np.float32)
    slopes_of = jax.jit(jax.value_and_grad(lambda p: learned(p, x)[0].var()))
    value, slopes = slopes_of(params)
    flipped = {**params, **{name: -params[name] for name in model.scales}}
    same, opposite = slopes_of(flipped)
    assert same == value
    for name, slope in slopes.items():
        sign = -1 if name in model.scales else 1
        np.testing.assert_array_equal(opposite[name], sign * slope)
    zeros = {name: np.zeros_like(params[name]) for name in model.scales}
    assert all(np.isfinite(g).all() for g in slopes_of({**params, **zeros})[1].values())
    model.save(tmp_path / "flipped.tflite", flipped)
    assert (tmp_path / "flipped.tflite").read_bytes() == FILES["int8"]()


@pytest.mark.parametrize("name", FILES)
def test_a_saved_file_computes_what_was_trained(name: str, tmp_path: Path) -> None:
    content = FILES[name]()
    model = jd.load(content)
    learned, params = model.function(**(TRAINED if name == "int4 in blocks" else LEARNED))
    random = np.random.default_rng(0)
    trained = {n: p * random.uniform(0.9, 1.1, p.shape).astype(p.dtype) for n, p in params.items()}
    model.save(tmp_path / "saved.tflite", trained)
    same, stored = jd.load(tmp_path / "saved.tflite").function(io="float")
    xs = inputs_of(learned)
    np.testing.assert_array_equal(same(stored, *xs)[0], learned(trained, *xs)[0])
    assert (tmp_path / "saved.tflite").read_bytes() != content


def train(
    params: dict[str, Any], loss: Callable[[Any], Any], steps: int, rate: float
) -> tuple[dict[str, Any], list[float]]:
    """optax.adam; scales move in proportion to themselves."""
    optimizer = optax.adam(rate)

    @jax.jit
    def step(params: Any, memory: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(params)
        with jax.numpy_dtype_promotion("standard"):
            updates, memory = optimizer.update(slopes, memory)
        for name in updates:
            if name.endswith("/scale"):
                updates[name] = updates[name] * params[name]
        return optax.apply_updates(params, updates), memory, value

    memory, values = optimizer.init(params), []
    for _ in range(steps):
        params, memory, value = step(params, memory)
        values.append(float(value))
    return params, [*values, float(loss(params))]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "output", "ranges"),
    [
        ("int8", "y", "learned"),
        pytest.param("a network", "logits", "kept", marks=pytest.mark.exhaustive),
        pytest.param("a network", "logits", "learned", marks=SLOW),
    ],
)
def test_integers_learn(name: str, output: str, ranges: Any, tmp_path: Path) -> None:
    model = jd.load(FILES[name]())
    apply, params = model.until(output).function(
        io="float", weights="fake_quantized", ranges=ranges
    )
    random = np.random.default_rng(0)
    (given,) = apply.inputs()
    x = random.uniform(-2.5, 2.5, (8, *given.shape[1:])).astype(np.float32)
    want = apply(params, x)[0]
    worse = {n: p * np.float32(random.uniform(0.6, 1.0, p.shape)) for n, p in params.items()}

    def loss(p: Any) -> Any:
        return ((apply(p, x)[0] - want) ** 2).mean()

    trained, losses = train(worse, loss, 40, 1e-2)
    assert losses[-1] < 0.2 * losses[0]
    assert all(np.any(trained[n] != worse[n]) for n in params)
    file = tmp_path / "saved.tflite"
    model.save(file, trained)
    same, stored = jd.load(file).until(output).function(io="float")
    got = np.asarray(apply(trained, x)[0])
    np.testing.assert_array_equal(same(stored, x)[0], got)
    exact, integer = model.until(output).exact(trained).function(io="float")
    on_device = np.asarray(exact(integer, x)[0])
    again, other = jd.load(file, quant_mode="integer").until(output).function(io="float")
    np.testing.assert_array_equal(again(other, x)[0], on_device)
    assert np.abs(on_device - got).max() < 1.01 * jd.load(file).tensors[output].quantization.scale
    assert ((on_device - want) ** 2).mean() < 0.25 * losses[0]


def test_batches_and_transformations_take_the_same_leaves() -> None:
    model = jd.load(small_network())
    learned, params = model.function(**LEARNED)
    want = learned(params, IMAGES)[0]
    batch, same = model.batched(8).function(**LEARNED)
    assert set(same) == set(params)
    np.testing.assert_array_equal(batch(same, IMAGES)[0], want)
    mapped = jax.vmap(lambda x: learned(params, x[None])[0][0])(IMAGES)
    np.testing.assert_allclose(mapped, want, atol=1.5 / 256)
    first, own = model.until("pooled").function(**LEARNED)
    assert set(own) == {"filter", "bias", "image/scale", "features/scale", "filter/scale"}
    assert first(own, IMAGES)[0].shape == (8, 2, 2, 3)


def test_leaves_in_a_loop_have_gradients() -> None:
    model = jd.load(looping())
    learned, params = model.function(**LEARNED)
    x = np.array([[1.0, -2.0, 3.0, 0.5]], np.float32)
    slopes = jax.grad(lambda p: (learned(p, x)[0] ** 2).sum())({**params, "w": params["w"] * 1.013})
    assert set(slopes) == {"w", "x/scale", "between/scale", "w/scale"}
    assert all(np.any(g != 0) for g in slopes.values())


def test_what_cannot_be_trained_is_said() -> None:
    integer = jd.load(small_network(), quant_mode="integer")
    with pytest.raises(jd.OptionError, match="this model was loaded with quant_mode='integer'"):
        integer.function(ranges="learned")
    plain = jd.load(TASKS["classification"].network())
    with pytest.raises(jd.OptionError, match="the model has no quantized weights"):
        plain.function(weights="fake_quantized")
    for name in ("weights", "ranges"):
        with pytest.raises(jd.OptionError, match=f"{name}: expected"):
            plain.function(**{name: "x"})
    learned, params = jd.load(small_network()).function(ranges="learned")
    short = {n: p for n, p in params.items() if n != "logits/scale"}
    with pytest.raises(jd.TensorError, match="params has no 'logits/scale'"):
        learned(short, np.zeros((1, 4, 4, 2), np.int8))
    with pytest.raises(
        jd.TensorError, match=r"'logits/scale'\]: expected the shape \[1\], got \[\]"
    ):
        learned({**params, "logits/scale": 0.1}, np.zeros((1, 4, 4, 2), np.int8))


@pytest.mark.slow
@pytest.mark.parametrize("ranges", ["learned", KEPT])
@pytest.mark.litert
def test_an_anomaly_detector_learns_other_sounds(ranges: Any, tmp_path: Path) -> None:
    path = MODELS / "networks/model_ToyCar_quant_fullint.tflite"
    if not path.exists():
        pytest.skip("the shared models are not here")
    model = jd.load(path)
    apply, params = model.function(io="float", weights="fake_quantized", ranges=ranges)
    random = np.random.default_rng(0)
    factors = random.normal(size=(128, 8)), random.normal(size=(8, 640))
    x = (factors[0] @ factors[1] * 2 - 20).astype(np.float32)  # log-mel energies of 8 sources

    def loss(p: Any) -> Any:
        return ((apply(p, x)[0] - x) ** 2).mean()

    trained, losses = train(params, loss, 200, 1e-3)
    assert losses[-1] < 0.6 * losses[0]
    file = tmp_path / "tuned.tflite"
    model.save(file, trained)
    same, stored = jd.load(file).function()
    np.testing.assert_array_equal(same(stored, x)[0], apply(trained, x)[0])
    on_device = reference_kernels(file, x)
    errors = [((y - x) ** 2).mean() for y in (reference_kernels(path, x), on_device)]
    np.testing.assert_allclose(errors, [losses[0], losses[-1]], rtol=0.01)
    exact, integers = jd.load(file, quant_mode="integer").function()
    np.testing.assert_array_equal(exact(integers, x)[0], on_device)


def reference_kernels(path: Path, x: np.ndarray) -> np.ndarray:
    """LiteRT's output, for models with one input and one output."""
    kernels = litert.OpResolverType.BUILTIN_REF
    interpreter = litert.Interpreter(str(path), experimental_op_resolver_type=kernels)
    return run_once(interpreter, [x])[0]


@pytest.mark.exhaustive  # half a minute; `test_integers_learn` trains whole networks, too
@pytest.mark.parametrize("ranges", ["kept", "learned"])
def test_an_int8_classifier_comes_back_from_disturbed_weights(ranges: Any) -> None:
    task = TASKS["classification"]
    model = jd.load(task.network(quantized=True))
    apply, params = model.function(weights="fake_quantized", ranges=ranges)
    teacher, own = jd.load(task.network()).function()
    x = np.concatenate([task.inputs(task.picture(seed)) for seed in range(16)])
    want = teacher(own, x)[0]

    def loss(p: Any) -> Any:
        return (want * jnp.log((want + 1e-6) / (apply(p, x)[0] + 1e-6))).sum(axis=1).mean()

    random = np.random.default_rng(0)
    worse = {
        n: p if n.endswith("/scale") else p * random.uniform(0.4, 1.2, p.shape).astype(np.float32)
        for n, p in params.items()
    }
    _, losses = train(worse, loss, 40, 1e-3)
    assert losses[-1] < 0.5 * losses[0]
