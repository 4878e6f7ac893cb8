"""Models on eight devices, for test_sharding.py: prints the failures of cases as JSON.

python sharding_cases.py PAGE, in a folder with the page's model.tflite.
"""

import functools
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxdelegate as jd
from jaxdelegate.testing import assert_close
from sample_tasks import sounds
from sample_tasks.tasks import TASKS
from tests.function import graphs
from tests.many_devices import case, collectives, run_cases, two_layers

WIDTH, INPUTS = 256, 16


@functools.cache
def page() -> dict[str, Any]:
    """The variables after the page's code has run."""
    names: dict[str, Any] = {}
    for block in re.findall(
        r"^```python\n(.*?)^```", Path(sys.argv[1]).read_text(), re.MULTILINE | re.DOTALL
    ):
        if "distributed" not in block:
            exec(compile(block, sys.argv[1], "exec"), names)
    return names


@functools.cache
def unsharded() -> np.ndarray:
    p = page()
    (scores,) = p["apply"](p["params"], p["images"])
    assert len(scores.devices()) == 1
    return np.asarray(scores)


def mesh(**sizes: int) -> jax.sharding.Mesh:
    auto = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=auto)


def placed(array: Any, over: jax.sharding.Mesh, *axes: str | None) -> Any:
    return jax.device_put(array, NamedSharding(over, PartitionSpec(*axes)))


def shapes_on_devices(array: jax.Array) -> set[tuple[int, ...]]:
    assert len(array.sharding.device_set) == 8
    return {shard.data.shape for shard in array.addressable_shards}


def is_by_batch(array: jax.Array, parts: int = 8) -> bool:
    return shapes_on_devices(array) == {(array.shape[0] // parts, *array.shape[1:])}


def wide() -> bytes:
    return two_layers(4, 8, WIDTH, INPUTS)


@case
def the_sharded_models_of_the_page() -> None:
    p = page()
    assert is_by_batch(p["scores_sharded"])
    np.testing.assert_array_equal(p["scores_sharded"], p["as_one_device_does"])
    assert is_by_batch(p["scores_divided"], parts=2)
    assert_close([p["scores_divided"]], [unsharded()], accumulated=768)
    assert_close([p["scores_applied"]], [unsharded()], accumulated=768)


@case
def the_batch_of_the_page() -> None:
    assert is_by_batch(page()["scores"])
    assert_close([page()["scores"]], [unsharded()], accumulated=768)


@case
def explicit_axes_of_the_page() -> None:
    assert is_by_batch(page()["scores_explicit"])
    assert_close([page()["scores_explicit"]], [unsharded()], accumulated=768)


@case
def shard_map_of_the_page() -> None:
    assert is_by_batch(page()["scores_each"])
    assert_close([page()["scores_each"]], [unsharded()], accumulated=768)


@case
def the_weights_of_the_page() -> None:
    (weight,) = (w for w in page()["divided"].values() if w.ndim == 2)
    assert shapes_on_devices(weight) == {(32, 768 // 8)}
    assert_close([page()["scores_model"]], [unsharded()], accumulated=768)


@case
def both_of_the_page() -> None:
    (weight,) = (w for w in page()["divided_twice"].values() if w.ndim == 2)
    assert shapes_on_devices(weight) == {(32, 768 // 4)}
    assert is_by_batch(page()["scores_both"], parts=2)
    assert_close([page()["scores_both"]], [unsharded()], accumulated=768)


@case
def the_gradient_of_the_page() -> None:
    p = page()
    arguments = p["params"], p["images"], p["labels"]
    value, gradient = jax.jit(jax.value_and_grad(p["loss"]))(*arguments)
    assert_close([p["value"]], [value], accumulated=768)
    for name, want in gradient.items():
        assert shapes_on_devices(p["gradient"][name]) == {want.shape}
        assert_close([p["gradient"][name]], [want], accumulated=768)


@case
def a_batch_of_convolutions_needs_no_collective() -> None:
    apply, params = jd.load(graphs.classifier(first=-1)).function()
    images = np.random.default_rng(0).random((16, 3, 3, 2), np.float32)
    over = mesh(batch=8)
    given = placed(params, over), placed(images, over, "batch")
    program = jax.jit(apply).lower(*given).compile()
    assert collectives(program.as_text()) == set()
    for y, want in zip(program(*given), apply(params, images), strict=True):
        assert is_by_batch(y)
        assert_close([y], [want], accumulated=1000)


@case
def a_called_model_runs_where_its_inputs_lie() -> None:
    model = jd.load("model.tflite")
    (scores,) = model(placed(page()["images"], mesh(batch=8), "batch"))
    assert is_by_batch(scores)
    assert_close([scores], [unsharded()], accumulated=768)


@case
def integers_are_equal_however_divided() -> None:
    apply, params = jd.load(graphs.integers(), quant_mode="integer").function()
    images = np.random.default_rng(0).integers(-128, 128, (8, 4), np.int8)
    over = mesh(batch=8)
    found = jax.jit(apply)(placed(params, over), placed(images, over, "batch"))
    for y, want in zip(found, apply(params, images), strict=True):
        assert is_by_batch(y)
        np.testing.assert_array_equal(y, want)


@case
def weights_by_inputs_and_by_outputs() -> None:
    apply, params = jd.load(wide()).function()
    x = np.random.default_rng(1).normal(size=(4, INPUTS)).astype(np.float32)
    over = mesh(batch=2, model=4)
    divided = {
        "w1": placed(params["w1"], over, "model"),  # by outputs
        "b1": placed(params["b1"], over, "model"),
        "w2": placed(params["w2"], over, None, "model"),  # by inputs
    }
    assert shapes_on_devices(divided["w1"]) == {(WIDTH // 4, INPUTS)}
    assert shapes_on_devices(divided["w2"]) == {(8, WIDTH // 4)}
    given = divided, placed(x, over, "batch")
    program = jax.jit(apply).lower(*given).compile()
    assert collectives(program.as_text()) == {"all-reduce"}
    # Each device gets its part, and no device assembles a whole weight.
    assert f"f32[{WIDTH // 4},{INPUTS}]" in program.as_text()
    assert f"f32[{WIDTH},{INPUTS}]" not in program.as_text()
    (y,) = program(*given)
    assert is_by_batch(y, parts=2)
    assert_close([y], apply(params, x), accumulated=WIDTH)


@case
def the_gradient_of_divided_weights_is_divided() -> None:
    apply, params = jd.load(wide()).function()
    x = np.random.default_rng(1).normal(size=(4, INPUTS)).astype(np.float32)
    over = mesh(model=8)
    shardings = {
        name: NamedSharding(over, PartitionSpec(*axes))
        for name, axes in {"w1": ("model",), "b1": ("model",), "w2": (None, "model")}.items()
    }

    def loss(params: Any, x: Any) -> Any:
        return jnp.square(apply(params, x)[0]).mean()

    want = jax.jit(jax.grad(loss))(params, x)
    slope = jax.jit(jax.grad(loss), out_shardings=shardings)
    found = slope(jax.device_put(params, shardings), x)
    assert shapes_on_devices(found["w1"]) == {(WIDTH // 8, INPUTS)}
    for name in params:
        assert_close([found[name]], [want[name]], accumulated=WIDTH)


@case
def explicit_axes_say_what_to_do() -> None:
    over = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Explicit,))
    apply, params = jd.load(TASKS["classification"].network()).function()
    images = np.zeros((8, 64, 64, 3), np.float32)
    given = placed(params, over), placed(images, over, "batch")
    if jax.__version_info__ >= (0, 12):  # determines the sharding of this network's reshapes
        assert_close(jax.jit(apply)(*given), apply(params, images), accumulated=1000)
        return
    with pytest.raises(Exception, match="sharding") as refused:
        jax.jit(apply)(*given)
    assert "AxisType.Auto" in "".join(refused.value.__notes__)


@case
def streams_over_the_devices() -> None:
    model = jd.load(sounds.network())
    apply, params = model.function()
    frames = np.random.default_rng(2).normal(size=(8, 3, 1, sounds.BANDS)).astype(np.float32)

    def listen(frames: Any) -> Any:
        def step(state: Any, frame: Any) -> Any:
            (scores,), state = apply(params, frame, state=state)
            return state, scores

        return jax.lax.scan(step, model.initial_state(), frames)[1]

    over = mesh(batch=8)
    found = jax.jit(jax.vmap(listen))(placed(frames, over, "batch"))
    assert is_by_batch(found)
    assert_close([found], [jax.jit(jax.vmap(listen))(frames)], accumulated=1000)


if __name__ == "__main__":
    run_cases()
