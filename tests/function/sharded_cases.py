"""`Model.sharded` on eight devices, for test_sharded.py: prints what failed, and why, as JSON."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdelegate as jd
from jaxdelegate.kernels import library
from jaxdelegate.testing import assert_close
from sample_tasks.tasks import TASKS
from tests.function import graphs
from tests.function.test_function import counter, lstm
from tests.many_devices import case, collectives, run_cases, two_layers

RNG = np.random.default_rng(3)


def mesh(**sizes: int) -> jax.sharding.Mesh:
    """A mesh as users make it: with explicit axes, JAX's default."""
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes))


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def singly(model: jd.Model, x: np.ndarray, part: int = 1) -> np.ndarray:
    """Parts of a batch, one after the other on one device."""
    parts = [model(x[i : i + part])[0] for i in range(0, len(x), part)]
    assert {len(y.devices()) for y in parts} == {1}
    return np.concatenate(parts)


def parts_of(array: jax.Array) -> set[tuple[int, ...]]:
    assert len(array.sharding.device_set) == 8
    return {shard.data.shape for shard in array.addressable_shards}


def program(sharded: Any) -> str:
    """The only program that was compiled for the devices."""
    (only,) = sharded._functions.function_of(None)._single._programs.values()
    text: str = only.executable.as_text()
    return text


def wide() -> bytes:
    """[1, 16] to [1, 6] by 256: the outputs cannot be divided by 4 or 8."""
    return two_layers(outputs=6)


# ---- the batch


@case
def each_part_has_the_bits_of_one_device() -> None:
    task = TASKS["classification"]
    model = jd.load(task.network())
    x = floats(16, 64, 64, 3)
    sharded = model.sharded(mesh(data=8))
    found = sharded(x)
    assert parts_of(found[0]) == {(2, *found[0].shape[1:])}
    np.testing.assert_array_equal(found[0], singly(model.batched(2), x, 2))
    # The whole batch on one device is another program, whose last bits may differ.
    assert_close([found[0]], [model.batched("b")(x)[0]], accumulated=1000)
    text = program(sharded)
    assert collectives(text) == set()
    assert ("jaxdelegate" in text) == (library.why_not() is None)


@case
def integers_are_those_of_the_whole_batch() -> None:
    model = jd.load(graphs.integers(), quant_mode="integer")
    x = RNG.integers(-128, 128, (24, 4), np.int8)
    sharded = model.sharded(mesh(data=8))
    np.testing.assert_array_equal(sharded(x)[0], model(x)[0])
    apply, params = sharded.function()
    np.testing.assert_array_equal(jax.jit(apply)(params, x)[0], model(x)[0])


@case
def quantized_floats_are_those_of_one_device() -> None:
    model = jd.load(graphs.integers())
    x = RNG.integers(-128, 128, (8, 4), np.int8)
    np.testing.assert_array_equal(model.sharded(mesh(data=8))(x)[0], singly(model, x))


@case
def a_graph_that_fixes_one_image_runs_singly() -> None:
    for make, shape in (
        (graphs.classifier, (3, 3, 2)),
        (graphs.anchors, (2, 2, 6)),
        (graphs.softmax_over_images, (4,)),
    ):
        model, x = jd.load(make()), floats(16, *shape)
        found = model.sharded(mesh(data=8))(x)
        assert parts_of(found[0]) == {(2, *found[0].shape[1:])}
        np.testing.assert_array_equal(found[0], singly(model, x))


@case
def an_input_that_all_images_share_is_whole() -> None:
    model, x = jd.load(graphs.scaled()), floats(8, 4)
    y, z = model.sharded(mesh(data=8))(x, np.float32(3))
    np.testing.assert_array_equal(y, 3 * x)
    np.testing.assert_array_equal(z, [[0, 3, 6]] * 8)
    assert parts_of(z) == {(1, 3)}


@case
def every_call_starts_from_the_initial_state() -> None:
    x = floats(8, 2)
    for make, shape in ((counter, (2,)), (lstm, (1, 2))):
        model = jd.load(make())
        sharded = model.sharded(mesh(data=8))
        want = np.stack([np.asarray(model(row.reshape(shape))[0]) for row in x])
        for _ in range(2):
            assert_close(sharded(x), [want.reshape(8, -1)], accumulated=8)
    apply, params = sharded.function()
    with pytest.raises(jd.TensorError, match="neither state nor key"):
        apply(params, x, state={})


@case
def over_two_axes_and_over_one_of_two() -> None:
    model, x = jd.load(graphs.classifier(first=-1)), floats(8, 3, 3, 2)
    two = mesh(data=2, more=4)
    by_one = model.sharded(two)(x)[0]
    assert parts_of(by_one) == {(4, 5)}
    np.testing.assert_array_equal(by_one, singly(model, x, 4))
    by_both = model.sharded(two, ("data", "more"))(x)[0]
    assert parts_of(by_both) == {(1, 5)}
    np.testing.assert_array_equal(by_both, singly(model, x))


@case
def inputs_of_any_place_and_by_name() -> None:
    model, x = jd.load(graphs.classifier(first=-1, signature=True)), floats(8, 3, 3, 2)
    over = mesh(data=8)
    sharded = model.sharded(over)
    want = singly(model, x)
    on_one, on_mesh = jnp.asarray(x), jax.device_put(x, NamedSharding(over, P("data")))
    for given in (x, on_one, on_mesh):
        np.testing.assert_array_equal(sharded(given)[0], want)
    np.testing.assert_array_equal(sharded(picture=x)["logits"], want)
    np.testing.assert_array_equal(sharded({"picture": x})["logits"], want)
    apply, params = sharded.function("classify")
    assert_close([apply(params, picture=x)["logits"]], [want], accumulated=36)


@case
def a_batch_of_a_fixed_size() -> None:
    model, x = jd.load(graphs.classifier()), floats(16, 3, 3, 2)
    sharded = model.batched(16).sharded(mesh(data=8))
    np.testing.assert_array_equal(sharded(x)[0], singly(model, x))
    with pytest.raises(jd.TensorError, match=r"for batches of 16, got \[8, 3, 3, 2\]"):
        sharded(x[:8])


@case
def changed_weights() -> None:
    model, x = jd.load(wide()), floats(8, 16)
    changed = model.with_params({name: 2 * leaf for name, leaf in model.params.items()})
    found = changed.sharded(mesh(data=8))(x)[0]
    assert parts_of(found) == {(1, 6)}
    assert_close([found], [changed(x)[0]], accumulated=256)
    assert np.abs(np.asarray(found) - model(x)[0]).max() > 0.1


@case
def gradients_are_those_of_one_device() -> None:
    model, x = jd.load(wide()), floats(8, 16)
    want_apply, want_params = model.function()
    wanted = jax.grad(lambda p: jnp.square(want_apply(p, x)[0]).mean())(want_params)
    for axes, weights in (("data", "replicated"), ("data", "more"), (None, "more")):
        apply, params = model.sharded(mesh(data=2, more=4), axes, weights=weights).function()
        slope = jax.jit(jax.grad(lambda p, x, f=apply: jnp.square(f(p, x)[0]).mean()))(params, x)
        for name, want in wanted.items():
            assert_close([slope[name]], [want], accumulated=256)


# ---- the weights


@case
def weights_by_output_channels() -> None:
    model, x = jd.load(wide()), floats(8, 16)
    sharded = model.sharded(mesh(data=2, model=4), weights="model")
    assert {n: parts_of(leaf) for n, leaf in sharded.params.items()} == {
        "w1": {(64, 16)},
        "b1": {(64,)},
        "w2": {(6, 256)},  # 4 does not divide its 6 outputs
    }
    found = sharded(x)[0]
    assert parts_of(found) == {(4, 6)}
    assert_close([found], model(x), accumulated=256)
    apply, params = sharded.function()
    text = jax.jit(apply).lower(params, x).compile().as_text()
    assert "f32[64,16]" in text  # what a device has of w1
    assert "f32[256,16]" not in text  # no device puts it together


@case
def weights_by_pattern_and_by_function() -> None:
    model, x = jd.load(wide()), floats(4, 16)
    over = mesh(model=8)
    by_name = model.sharded(over, None, weights={"w2": P(None, "model"), "*": P("model")})
    by_shape = model.sharded(
        over, None, weights=lambda name, _: P("model") if name.endswith("1") else None
    )
    assert parts_of(by_name.params["w2"]) == {(6, 32)}
    assert parts_of(by_shape.params["w2"]) == {(6, 256)}
    for sharded in (by_name, by_shape):
        assert parts_of(sharded.params["w1"]) == {(32, 16)}
        found = sharded(x)[0]
        assert parts_of(found) == {(4, 6)}  # the batch is not divided
        assert_close([found], model(x), accumulated=256)


@case
def weights_of_float16_that_are_decoded() -> None:
    model = jd.load(graphs.shared_weights())
    with pytest.raises(jd.OptionError, match="divisible by 8, the size of axis"):
        model.sharded(mesh(model=8), None, weights="model")
    three = jax.sharding.Mesh(np.array(jax.devices()[:3]), ("model",))
    sharded = model.sharded(three, None, weights="model")
    assert {s.data.shape for s in sharded.params["kernel"].addressable_shards} == {(1, 4)}
    x = floats(1, 4)
    assert_close([sharded(x=x)["z"]], [model(x=x)["z"]], accumulated=4)


@case
def integers_by_divided_weights() -> None:
    model = jd.load(graphs.integers(), quant_mode="integer")
    three = jax.make_mesh((2, 3), ("data", "model"), devices=jax.devices()[:6])
    x = RNG.integers(-128, 128, (6, 4), np.int8)
    sharded = model.sharded(three, weights="model")
    assert {s.data.shape for s in sharded.params["w"].addressable_shards} == {(1, 4)}
    np.testing.assert_array_equal(sharded(x)[0], model(x)[0])


# ---- errors


@case
def wrong_meshes_axes_and_weights() -> None:
    model, over = jd.load(wide()), mesh(data=2, model=4)
    for arguments, options, said in (
        ((over, "rows"), {}, "batch: the mesh has no axis 'rows'; its axes are 'data', 'model'"),
        ((over,), {"weights": "rows"}, "weights: the mesh has no axis 'rows'"),
        ((over,), {"weights": "data"}, "'data' is the axis of the batch"),
        ((over, None), {}, "batch=None and weights='replicated' divide nothing"),
        ((over, ("data", "data")), {}, "batch: duplicate axis"),
        ((jax.devices(),), {}, "expected a jax.sharding.Mesh, .* got list"),
        ((over,), {"weights": {"w3": P("model")}}, "no name in .* matches 'w3'; the closest: 'w"),
        ((over,), {"weights": {"w2": P("model")}}, r"'w2' is \[6, 256\]: 6 cannot be divided"),
        ((over,), {"weights": {"b1": P(None, "model")}}, "'b1' is .256., and .* has 2 dimensions"),
        ((over,), {"weights": {"w1": P("rows")}}, "weight 'w1': the mesh has no axis 'rows'"),
        ((over,), {"weights": {"w1": "model"}}, "'w1': expected a jax.sharding.PartitionSpec"),
        ((over,), {"weights": 3}, "expected 'replicated', an axis of the mesh, .* got int"),
    ):
        with pytest.raises(jd.OptionError, match=said):
            model.sharded(*arguments, **options)


@case
def wrong_batches() -> None:
    sharded = jd.load(wide()).sharded(mesh(data=8))
    said = (
        r"input 'x' \[20, 16\]: the batch is 20, but axis 'data' .* multiple of 8, such as 16 or 24"
    )
    with pytest.raises(jd.TensorError, match=said):
        sharded(floats(20, 16))
    with pytest.raises(jd.TensorError, match="multiple of 8, such as 8: pad"):
        sharded(floats(4, 16))
    apply, params = sharded.function()
    with pytest.raises(jd.TensorError, match=said):
        jax.jit(apply)(params, floats(20, 16))
    with pytest.raises(jd.TensorError, match="wants float32"):
        sharded(np.zeros((8, 16), np.int32))
    with pytest.raises(jd.TensorError, match="with positional or with named"):
        sharded(floats(8, 16), x=floats(8, 16))


@case
def another_platform() -> None:
    model = jd.load(wide(), platform="gpu")
    with pytest.raises(jd.OptionError, match="platform='gpu', but the mesh has devices of cpu"):
        model.sharded(mesh(data=8))
    jd.load(wide(), platform="cpu").sharded(mesh(data=8))(floats(8, 16))


@case
def it_says_what_it_is() -> None:
    sharded = jd.load(wide()).sharded(mesh(data=2, model=4))
    assert "8 cpu devices (data: 2, model: 4)" in repr(sharded)
    assert repr(sharded.function()[0]).startswith("<apply(params, x) over a mesh")
    assert set(sharded.mesh.axis_types) == {AxisType.Auto}


if __name__ == "__main__":
    run_cases()
