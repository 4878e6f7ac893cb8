"""Write back: what the file stores of leaves and scales, and that stock LiteRT runs it."""

import json
import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert import interpreter as litert

import jaxdelegate as jd
from jaxdelegate.function.saving.stored_leaves import StoredLeaf, stored_leaves
from jaxdelegate.op_lowering.options import (
    ConcatenationOptions,
    FullyConnectedOptions,
    Padding,
    Pool2DOptions,
)
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.running import random_inputs, run_once
from tests.function.graphs import classifier, integers, shared_weights, shared_zeros
from tests.support.sparse import csr

SHARED = Path(__file__).parents[3] / "shared" / "models"
REFERENCE = litert.OpResolverType.BUILTIN_REF
X = np.array([[10, -20, 30, 40]], np.int8)
Array = np.ndarray


def saved(model: Any, path: Path, params: dict[str, Any] | None = None, **how: Any) -> Any:
    """The model that is read from the file that `model` is saved to."""
    target = path / "saved.tflite"
    model.save(target, params, **how)
    return jd.load(target, model.options)


def stock(path: Any, inputs: list[Array], *, reference: bool = True) -> list[Array]:
    kind = REFERENCE if reference else litert.OpResolverType.AUTO
    return run_once(
        litert.Interpreter(str(path), experimental_op_resolver_type=kind),
        inputs,
    )


def one_scale(scale: float, point: int = 0) -> Quantization:
    return Quantization(np.array([scale], np.float32), np.array([point], np.int64))


def two_scales(scale: float) -> Quantization:
    return Quantization(np.array([scale, 2 * scale], np.float32), np.zeros(2, np.int64))


def dense(w: Array, **details: Any) -> bytes:
    """y [1, 3] = x [1, 4] w^T with weights of any kind."""
    builder = ModelBuilder()
    x, y = builder.input((1, 4), name="x"), builder.tensor((1, 3), name="y")
    kernel = builder.constant(w, "w", **details)
    builder.operator("FULLY_CONNECTED", [x, kernel, None], [y], FullyConnectedOptions(), version=9)
    builder.outputs(y)
    return builder.build()


def tied() -> bytes:
    """int8: RELU -> MAX_POOL_2D -> CONCATENATION with a constant -> RESHAPE -> TANH."""
    builder = ModelBuilder()
    q, fixed = one_scale(0.1, 2), one_scale(1 / 128)
    names = ("a", "b", "c", "d", "e")
    shapes = ((1, 2, 2, 1), (1, 1, 1, 1), (1, 1, 1, 2), (1, 2), (1, 2))
    x = builder.input((1, 2, 2, 1), np.int8, "x", quantization=one_scale(0.1, 5))
    a, b, c, d, e = (
        builder.tensor(shape, np.int8, name, quantization=fixed if name == "e" else q)
        for name, shape in zip(names, shapes, strict=True)
    )
    k = builder.constant(np.full((1, 1, 1, 1), 52, np.int8), "k", quantization=q)
    pool = Pool2DOptions(Padding.VALID, stride_w=1, stride_h=1, filter_width=2, filter_height=2)
    builder.operator("RELU", [x], [a], version=2)
    builder.operator("MAX_POOL_2D", [a], [b], pool, version=2)
    builder.operator("CONCATENATION", [b, k], [c], ConcatenationOptions(axis=3), version=2)
    shape = builder.constant(np.array([1, 2], np.int32))
    builder.operator("RESHAPE", [c, shape], [d])
    builder.operator("TANH", [d], [e], version=2)
    builder.outputs(e)
    return builder.build()


# ---- what is stored


def test_a_file_without_changes_is_the_same(tmp_path: Path) -> None:
    for content in (classifier(signature=True), integers(), shared_weights(), tied()):
        model = jd.load(content)
        for params in (None, model.params):
            model.save(tmp_path / "m", params)
            assert (tmp_path / "m").read_bytes() == content
        jd.save(content, tmp_path / "m")
        assert (tmp_path / "m").read_bytes() == content


def test_float_weights_come_back(tmp_path: Path) -> None:
    model = jd.load(classifier())
    changed = {**model.params, "head": 2 * model.params["head"]}
    again = saved(model.with_params(changed), tmp_path)
    for name, leaf in changed.items():
        np.testing.assert_array_equal(again.params[name], leaf)
    x = np.ones((1, 3, 3, 2), np.float32)
    assert_close(again(x), [2 * np.asarray(model(x)[0])], accumulated=36)
    assert_close(stock(tmp_path / "saved.tflite", [x]), again(x), accumulated=36)
    part = saved(model.from_("features"), tmp_path, {"head": changed["head"]})
    assert part.params.keys() == {"head"}
    np.testing.assert_array_equal(part.params["head"], changed["head"])


def test_weights_are_rounded_to_their_grid(tmp_path: Path) -> None:
    model = jd.load(integers())
    scale = model.parameters["w"].scale[:, None]
    w = np.array(model.params["w"]) * np.float32(0.5)
    w[0] = np.float32([0.5, -0.5, 1.5, 0.49]) * scale[0]
    stored = _stored(saved(model, tmp_path, {"w": w}), "w")
    np.testing.assert_array_equal(stored[0], [1, -1, 2, 0])
    expected = np.trunc(w / scale + np.copysign(0.5, w))
    np.testing.assert_array_equal(stored[1:], expected[1:])
    _agrees(tmp_path)


def test_values_beyond_the_range_are_clamped_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = jd.load(integers())
    w = np.array(model.params["w"])
    w[1] = [-100, 100, 0.5, -100]
    with caplog.at_level(logging.WARNING, "jaxdelegate"):
        stored = _stored(saved(model, tmp_path, {"w": w}), "w")
    np.testing.assert_array_equal(stored[1], [-127, 127, 25, -127])
    assert "were clamped: w (3 of 12); rescale=True" in caplog.text


def test_new_scales_hold_what_changed(tmp_path: Path) -> None:
    model = jd.load(integers())
    w = np.array(model.params["w"])
    w[1] *= 10
    again = saved(model, tmp_path, {"w": w}, rescale=True)
    old, new = model.parameters["w"].scale, again.parameters["w"].scale
    assert (new[0], new[2]) == (old[0], old[2])
    assert np.abs(_stored(again, "w")[1]).max() == 127
    assert np.abs(again.params["w"] - w).max() <= 0.51 * new[1]
    bias = again.parameters["b"].scale
    np.testing.assert_allclose(bias, np.float32(0.05) * new, rtol=1e-6)
    np.testing.assert_allclose(again.params["b"], model.params["b"], atol=bias.max())
    _agrees(tmp_path)


def test_integer_leaves_are_stored_as_they_are(tmp_path: Path) -> None:
    model = jd.load(integers(), quant_mode="integer")
    changed = {"w": np.asarray(model.params["w"]) // 2, "b": np.array([1, -2, 3], np.int32)}
    again = saved(model, tmp_path, changed)
    for name, leaf in changed.items():
        np.testing.assert_array_equal(again.params[name], leaf)
    _agrees(tmp_path)
    scales = {"w/scale": 2 * model.parameters["w"].scale}
    again = saved(model, tmp_path, scales)
    np.testing.assert_array_equal(again.params["w"], model.params["w"])
    np.testing.assert_array_equal(again.params["b"], [50, -100, 150])
    _agrees(tmp_path)


def _stored(model: Any, name: str) -> Array:
    subgraph, tensor = model.parameters[name].tensors[0]
    data = model.graph.subgraphs[subgraph].tensors[tensor].data
    assert data is not None
    return data


def _agrees(path: Path) -> None:
    """Stock kernels and ours compute the same integers with the saved `integers()`."""
    file = path / "saved.tflite"
    ours = jd.load(file, quant_mode="integer")(X)
    np.testing.assert_array_equal(stock(file, [X])[0], ours[0])


KINDS: dict[str, tuple[Array, dict[str, Any]]] = {
    "float16": (np.linspace(-1, 1, 12).astype(np.float16).reshape(3, 4), {}),
    "bfloat16": (np.linspace(-1, 1, 12).astype(ml_dtypes.bfloat16).reshape(3, 4), {}),
    "int8": (np.arange(-60, 60, 10, np.int8).reshape(3, 4), {"quantization": one_scale(0.1)}),
    "int8_zero_point": (
        np.arange(-60, 60, 10, np.int8).reshape(3, 4),
        {"quantization": one_scale(0.1, 7)},
    ),
    "uint8": (np.arange(60, 180, 10, np.uint8).reshape(3, 4), {"quantization": one_scale(0.1, 9)}),
    "int16": (np.arange(-60, 60, 10, np.int16).reshape(3, 4), {"quantization": one_scale(0.1)}),
    "int4": (np.arange(-5, 7).astype(ml_dtypes.int4).reshape(3, 4), {"quantization": one_scale(1)}),
    "int2": (
        np.array([0, 1, -1] * 4).astype(ml_dtypes.int2).reshape(3, 4),
        {"quantization": one_scale(1)},
    ),
    "sparse": (np.float32([1, 2, 3]), {"shape": (4, 4), "sparsity": csr(np.uint8)}),
    "sparse_float16": (np.float16([1, 2, 3]), {"shape": (4, 4), "sparsity": csr(np.int32)}),
    "sparse_int8": (
        np.int8([10, 20, 30]),
        {"shape": (4, 4), "sparsity": csr(np.uint16), "quantization": one_scale(0.1)},
    ),
    "blocks": (
        np.arange(-60, 60, 10, np.int8).reshape(3, 4),
        {
            "quantization": Quantization(
                np.empty(0, np.float32),
                np.empty(0, np.int64),
                blockwise=Blockwise(-1, -1, 2, scale=np.float16([[0.5, 1], [2, 4], [8, 16]])),
            )
        },
    ),
}


def leaf_of(content: bytes) -> StoredLeaf:
    return stored_leaves(jd.load(content).graph, as_floats=True)["w"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_weight_comes_back(kind: str, tmp_path: Path) -> None:
    w, details = KINDS[kind]
    content = dense(w, **details)
    leaf = leaf_of(content)
    jd.save(content, tmp_path / "m", {"w": leaf.value})
    assert (tmp_path / "m").read_bytes() == content
    less = leaf.value * np.asarray(0.4, leaf.value.dtype)
    jd.save(content, tmp_path / "m", {"w": less})
    again = leaf_of((tmp_path / "m").read_bytes())
    step = 0 if leaf.quantization is None else _step(leaf)
    assert (np.abs(again.value.astype(np.float32) - less.astype(np.float32)) <= step / 2).all()
    assert not np.array_equal(again.value, leaf.value)


@pytest.mark.parametrize("kind", ["int8", "int8_zero_point", "uint8", "int4", "int2", "sparse"])
def test_stock_kernels_read_every_kind(kind: str, tmp_path: Path) -> None:
    w, details = KINDS[kind]
    content, x = dense(w, **details), np.float32([[0.5, -1, 2, 1]])
    leaf = leaf_of(content)
    jd.save(content, tmp_path / "m", {"w": np.roll(leaf.value, 1, 0) * (leaf.value != 0)})
    ours = run_once(jd.Interpreter(str(tmp_path / "m")), [x])
    np.testing.assert_allclose(stock(tmp_path / "m", [x])[0], ours[0], rtol=1e-5, atol=1e-6)
    assert (leaf_of((tmp_path / "m").read_bytes()).raw != leaf.raw).any()


def test_leaves_of_another_float_type_are_taken(tmp_path: Path) -> None:
    for dtype in (np.float64, ml_dtypes.bfloat16):
        given = np.full((5, 36), 0.5, dtype)
        again = saved(jd.load(classifier()), tmp_path, {"head": given})
        np.testing.assert_array_equal(again.params["head"], given.astype(np.float32))


def _step(leaf: StoredLeaf) -> Array:
    one = np.ones(leaf.shape, np.float32)
    q = leaf.quantization
    assert q is not None
    if q.blockwise is None:
        return one * q.scale
    assert q.blockwise.scale is not None
    return one * np.repeat(q.blockwise.scale.astype(np.float32), 2, 1)


def test_scales_in_blocks_change_with_their_values(tmp_path: Path) -> None:
    content = dense(KINDS["blocks"][0], **KINDS["blocks"][1])
    leaf = leaf_of(content)
    jd.save(content, tmp_path / "m", {"w": 4 * leaf.value}, rescale=True)
    again = leaf_of((tmp_path / "m").read_bytes())
    assert (np.abs(again.value - 4 * leaf.value) <= _step(again) * 0.6).all()
    scale = 2 * leaf.quantization.blockwise.scale
    jd.save(content, tmp_path / "m", {"w/scale": scale})
    again = leaf_of((tmp_path / "m").read_bytes())
    np.testing.assert_array_equal(again.quantization.blockwise.scale, scale)
    np.testing.assert_array_equal(again.value, leaf.value)


# ---- scales of activations


def test_a_new_scale_takes_the_bias_along(tmp_path: Path) -> None:
    model = jd.load(integers())
    again = saved(model, tmp_path, {"x/scale": np.float32([0.1]), "y/scale": np.float32([0.2])})
    assert again.tensors["x"].quantization.scale.tolist() == [np.float32(0.1)]
    assert again.tensors["x"].quantization.zero_point.tolist() == [-3]
    np.testing.assert_array_equal(_stored(again, "b"), [50, -100, 150])
    np.testing.assert_array_equal(again.params["w"], model.params["w"])
    _agrees(tmp_path)


def test_zeros_that_operators_with_other_scales_share(tmp_path: Path) -> None:
    model = jd.load(shared_zeros())
    again = saved(model, tmp_path, {"x/scale": np.float32([0.2])})
    np.testing.assert_array_equal(again.params["bias"], [0, 0])
    given = np.array([[5, -7]], np.int8)
    ours = jd.load(tmp_path / "saved.tflite", quant_mode="integer")(given)
    np.testing.assert_array_equal(stock(tmp_path / "saved.tflite", [given])[0], ours[0])
    with pytest.raises(jd.TensorError, match=r"differs between .* FULLY_CONNECTED 1; keep its val"):
        model.save(tmp_path / "m", {"bias": np.ones(2, np.float32)})


def test_tied_scales_follow(tmp_path: Path) -> None:
    model = jd.load(tied())
    again = saved(model, tmp_path, {"b/scale": np.float32([0.2])})
    for name in "abcd":
        assert again.tensors[name].quantization.scale[0] == np.float32(0.2)
    assert again.graph.subgraphs[0].tensors[6].data.item() == 27  # the constant's real value stays
    x = np.arange(4, dtype=np.int8).reshape(1, 2, 2, 1)
    ours = jd.load(tmp_path / "saved.tflite", quant_mode="integer")(x)
    np.testing.assert_array_equal(stock(tmp_path / "saved.tflite", [x])[0], ours[0])
    same = {f"{name}/scale": np.float32([0.3]) for name in "abcd"}
    assert saved(model, tmp_path, same).tensors["c"].quantization.scale[0] == np.float32(0.3)


def test_scales_that_an_operator_fixes_are_kept(tmp_path: Path) -> None:
    model = jd.load(tied())
    with pytest.raises(jd.TensorError, match="scale of 'e' is part of TANH 4, which fixes it"):
        model.save(tmp_path / "m", {"e/scale": np.float32([0.2])})
    two = {"a/scale": np.float32([0.2]), "b/scale": np.float32([0.3])}
    with pytest.raises(jd.TensorError, match=r"'a', 'b' must have one scale; give it for all"):
        model.save(tmp_path / "m", two)
    with pytest.raises(jd.TensorError, match="'b' follows from the scales of the input and"):
        jd.load(integers()).save(tmp_path / "m", {"b/scale": np.ones(3, np.float32)})


def test_ranges_that_inputs_lead_to(tmp_path: Path) -> None:
    model = jd.load(integers())
    x = np.array([[-1, 0.5, 2, 1]], np.float32)
    y = x @ np.asarray(model.params["w"]).T + np.asarray(model.params["b"])
    again = saved(model, tmp_path, calibrate=[(x,), {"x": np.zeros((1, 4), np.float32)}])
    q = again.tensors["x"].quantization
    np.testing.assert_allclose(q.scale, 3 / 255, rtol=1e-6)
    assert q.zero_point.tolist() == [-43]
    q = again.tensors["y"].quantization
    low, high = (q.scale * (end - q.zero_point) for end in (-128, 127))
    assert low - q.scale <= min(y.min(), 0) <= low + q.scale
    assert high - q.scale <= max(y.max(), 0) <= high + q.scale
    _agrees(tmp_path)
    apply, params = again.function(io="float")
    assert np.abs(np.asarray(apply(params, x)[0]) - y).max() < 4 * q.scale[0]


def test_ranges_of_tied_tensors_are_one(tmp_path: Path) -> None:
    model = jd.load(tied())
    x = np.float32([0, 1, 2, 3]).reshape(1, 2, 2, 1)
    again = saved(model, tmp_path, calibrate=[x])
    a, d = (again.tensors[name].quantization for name in "ad")
    assert (a.scale[0], a.zero_point[0]) == (d.scale[0], d.zero_point[0])
    np.testing.assert_allclose(a.scale, 5 / 255, rtol=1e-3)  # 5.0 is the constant
    assert again.tensors["e"].quantization.scale[0] == 1 / 128
    with pytest.raises(jd.OptionError, match="at least one set of inputs"):
        model.save(tmp_path / "m", calibrate=[])
    with pytest.raises(jd.OptionError, match="no quantized activations"):
        jd.load(classifier()).save(tmp_path / "m", calibrate=[x])


# ---- what cannot be stored


@pytest.mark.parametrize(
    ("content", "params", "message"),
    [
        (classifier(), {"heads": 1.0}, r"no such leaf; did you mean 'head'\?"),
        (classifier(), {"head": np.ones((36, 5), np.float32)}, r"expected the shape \[5, 36\]"),
        (classifier(), {"head": np.ones((5, 36), np.int32)}, "expected floats, got int32"),
        (classifier(), {"bias": np.float32([1, np.nan, 0, np.inf])}, r"2 values .* first at \[1\]"),
        (classifier(), {"head/scale": np.ones(1, np.float32)}, "is not quantized"),
        (shared_weights(), {"kernel": np.full((3, 4), 7e4, np.float32)}, "12 .* range of float16"),
        (integers(), {"w/scale": np.float32([1, 0, 2])}, "must be finite and not zero, got 0"),
        (integers(), {"x/scale": np.float32([np.nan])}, "must be finite and not zero, got nan"),
        (integers(), {"x/scale": np.ones(2, np.float32)}, r"expected the shape \[1\]"),
        (integers(), {"x/scale": np.ones(1, np.int32)}, "expected float32, got int32"),
        (integers(), {"x/scales": np.ones(1, np.float32)}, "did you mean 'x/scale'"),
    ],
)
def test_what_the_file_cannot_hold(
    content: bytes, params: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(jd.TensorError, match=message):
        jd.load(content).save(tmp_path / "m", params)
    assert not list(tmp_path.iterdir())


def test_integers_beyond_their_type(tmp_path: Path) -> None:
    model = jd.load(integers(), quant_mode="integer")
    with pytest.raises(jd.TensorError, match="range of int8 is -128 to 127, got 0 to 200"):
        model.save(tmp_path / "m", {"w": np.arange(12).reshape(3, 4) * 200 // 11})
    with pytest.raises(jd.TensorError, match="expected int8, got float32"):
        model.save(tmp_path / "m", {"w": np.ones((3, 4), np.float32)})


def test_a_sparse_pattern_stays(tmp_path: Path) -> None:
    content = dense(KINDS["sparse"][0], **KINDS["sparse"][1])
    full = np.ones((4, 4), np.float32)
    with pytest.raises(jd.TensorError, match=r"13 values are not zero where .* keep the pattern"):
        jd.save(content, tmp_path / "m", {"w": full})
    jd.save(content, tmp_path / "m", {"w": full * (leaf_of(content).value != 0)})


def test_a_leaf_that_follows_from_others(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x, two, y = (
        builder.input((2,), name="x"),
        builder.tensor((2,), name="two"),
        builder.tensor((2,)),
    )
    one = builder.constant(np.ones(2, np.float32), "one")
    builder.operator("ADD", [one, one], [two])
    builder.operator("MUL", [x, two], [y])
    builder.outputs(y)
    model = jd.load(builder.build())
    model.save(tmp_path / "m", model.params)
    with pytest.raises(jd.TensorError, match=r"'two'.* follows from other constants"):
        model.save(tmp_path / "m", {"two": np.zeros(2, np.float32)})
    jd.save(model, tmp_path / "m", {"one": np.zeros(2, np.float32)})  # any constant by its name
    np.testing.assert_array_equal(jd.load(tmp_path / "m").params["two"], [0, 0])


# ---- float16


def test_float16_for_float32(tmp_path: Path) -> None:
    jd.save(classifier(signature=True), tmp_path / "m", dtype="float16")
    model = jd.load(tmp_path / "m")
    assert {p.stored_dtype for p in model.parameters.values()} == {np.dtype(np.float16)}
    assert set(model.params) == set(jd.load(classifier()).params)
    x = np.ones((1, 3, 3, 2), np.float32)
    assert_close(stock(tmp_path / "m", [x], reference=False), model(x), accumulated=36)
    with pytest.raises(jd.OptionError, match="expected 'float16' or None, got 'float8'"):
        jd.save(classifier(), tmp_path / "m", dtype="float8")  # type: ignore[arg-type]
    with pytest.raises(jd.TensorError, match=r"'head' contains 70000, .* value is 65504"):
        jd.save(
            classifier(),
            tmp_path / "m",
            {"head": np.full((5, 36), 7e4, np.float32)},
            dtype="float16",
        )


def test_weights_next_to_quantized_ones_stay(tmp_path: Path) -> None:
    content = dense(*KINDS["int8"][:1], **KINDS["int8"][1])
    jd.save(content, tmp_path / "m", dtype="float16")
    assert (tmp_path / "m").read_bytes() == content


# ---- real networks

FILES = (
    [m for m in json.loads((SHARED / "manifest.json").read_text()) if m["litert_runs"]]
    if (SHARED / "manifest.json").exists()
    else []
)


def _content_of(file: str) -> Path:
    if not (SHARED / file).exists():
        pytest.skip(f"the real model {file} is not here")
    return SHARED / file


@pytest.mark.slow
@pytest.mark.parametrize("file", [m["file"] for m in FILES] or ["none"])
def test_a_real_file_without_changes_is_the_same(file: str, tmp_path: Path) -> None:
    path = _content_of(file)
    jd.save(path, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == path.read_bytes()
    leaves = stored_leaves(jd.load(path).graph, as_floats=True)
    jd.save(path, tmp_path / "m", {n: leaf.value for n, leaf in leaves.items()})
    assert (tmp_path / "m").read_bytes() == path.read_bytes()


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["float_view", "integer"])
@pytest.mark.parametrize("file", [m["file"] for m in FILES] or ["none"])
def test_stock_kernels_run_what_was_saved(file: str, mode: str, tmp_path: Path) -> None:
    path = _content_of(file)
    model = jd.load(path, quant_mode=mode)
    try:
        params, parameters = model.params, model.parameters
    except jd.DelegationError:
        pytest.skip("XLA cannot run it: it has no leaves")
    interpreter = litert.Interpreter(str(path))
    inputs = random_inputs(interpreter.get_input_details())
    before = _difference(model, path, inputs)
    is_quantized = any(p.quantization is not None for p in parameters.values())
    near = max(3 * before, 1e-2 if is_quantized else 1e-4)  # 1e-2: some steps of 8 bits
    chosen = {_kind_of(p): n for n, p in parameters.items() if p.tensors}
    for name in chosen.values():
        given = _moved(np.asarray(params[name]), is_float=parameters[name].quantization is None)
        again = saved(model, tmp_path, {**params, name: given})
        assert _difference(again, tmp_path / "saved.tflite", inputs) <= near
        others = {n: leaf for n, leaf in params.items() if n != name and parameters[n].tensors}
        for other, leaf in others.items():
            np.testing.assert_array_equal(again.params[other], leaf)
        if mode == "integer":
            stored = given.astype(parameters[name].stored_dtype).astype(given.dtype)
            np.testing.assert_array_equal(again.params[name], stored)
            if before == 0:
                assert _difference(again, tmp_path / "saved.tflite", inputs) <= 1e-6


def _kind_of(parameter: Any) -> tuple[Any, ...]:
    q = parameter.quantization
    return parameter.stored_dtype, q is not None, q is not None and q.is_per_channel


def _moved(leaf: Array, *, is_float: bool) -> Array:
    if is_float or leaf.dtype.kind == "f":
        return (leaf.astype(np.float32) * np.float32(1.01)).astype(leaf.dtype)
    wide = leaf.astype(np.int64)
    return (wide - 2 * np.sign(wide)).astype(leaf.dtype)


def _difference(model: Any, path: Path, inputs: list[Array]) -> float:
    """The largest difference between our outputs and stock ones, relative to the largest value."""
    delegate = jd.JaxDelegate(model.options)
    ours = run_once(jd.Interpreter(str(path), experimental_delegates=[delegate]), inputs)
    try:
        theirs = stock(path, inputs)
    except (RuntimeError, ValueError):  # the reference kernels lack an operator
        theirs = stock(path, inputs, reference=False)
    pairs = [
        (np.asarray(a, float), np.asarray(b, float)) for a, b in zip(ours, theirs, strict=True)
    ]
    return max(
        (np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-6) for a, b in pairs),
        default=0.0,
    )


def test_an_unknown_name_in_a_model_that_xla_cannot_run(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,))
    builder.operator("Nobodys", [x, builder.constant(np.ones(2, np.float32), "weight")], [y])
    builder.outputs(y)
    with pytest.raises(jd.TensorError, match="no such leaf; did you mean 'weight'"):
        jd.save(builder.build(), tmp_path / "m", {"weights": np.zeros(2, np.float32)})
