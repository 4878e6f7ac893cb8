"""`jax.grad` of a model by its weights, compared with the same network written in jax.lax.

    python bench/gradients.py --graph=mobilenet_v1_0.25_224.tflite [--rounds=20] [--out=file.jsonl]

Both are jitted and differentiated alike; first their gradients are compared, then their calls are
interleaved.
`first_s` is the first call, with tracing and compilation. Times are wall milliseconds, on a quiet
machine; `ratio` is the median over the rounds of our time over lax's.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from harness import append, interleaved, ratios
from jax import lax

import jaxdelegate as jd

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "A MobileNet v1 in float32.", required=True)
flags.DEFINE_integer("rounds", 20, "How often each one runs.", 5)
flags.DEFINE_string("out", None, "A file to append the JSON line to.")

_SIZES = "NHWC", "HWIO", "NHWC"


def in_lax(model: jd.Model) -> Callable[..., Any]:
    """The network as a JAX user writes it: one lax operation for each operator."""
    main = model.graph.subgraphs[0]
    names = {i: n for n, p in model.parameters.items() for _, i in p.tensors}

    def apply(params: Any, x: jax.Array) -> jax.Array:
        known: dict[int, Any] = {main.inputs[0]: x}
        for op in main.operators:
            o: Any = op.options
            given = [params[names[i]] if i in names else known.get(i) for i in op.inputs]
            y = given[0]
            if op.name in ("CONV_2D", "DEPTHWISE_CONV_2D"):
                w, b = given[1:]
                groups = 1 if op.name == "CONV_2D" else y.shape[-1]
                # CONV_2D stores [O, H, W, I], DEPTHWISE_CONV_2D [1, H, W, C].
                w = w.transpose(1, 2, 3, 0) if groups == 1 else w.transpose(1, 2, 0, 3)
                strides = o.stride_h, o.stride_w
                y = lax.conv_general_dilated(
                    y, w, strides, "SAME", dimension_numbers=_SIZES, feature_group_count=groups
                )
                y = y + b
                if o.fused_activation_function.name == "RELU6":
                    y = jnp.clip(y, 0, 6)
            elif op.name == "AVERAGE_POOL_2D":
                y = y.mean((1, 2), keepdims=True)
            elif op.name in ("SQUEEZE", "RESHAPE"):
                y = y.reshape(main.tensors[op.outputs[0]].shape)
            elif op.name == "SOFTMAX":
                y = jax.nn.softmax(y)
            else:
                raise app.UsageError(f"--graph: {op.name} is not an operator of MobileNet v1")
            known[op.outputs[0]] = y
        return known[main.outputs[0]]

    return apply


def gradient(apply: Callable[..., Any]) -> Any:
    """The gradient of the cross entropy with a class."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return -jnp.log(apply(params, x)[0, 7] + 1e-6)

    return jax.jit(jax.grad(loss))


def main(_argv: Sequence[str]) -> None:
    """Compare, measure, print."""
    model = jd.load(FLAGS.graph)
    apply, params = model.function()
    shape = apply.inputs()[0].shape
    x = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, shape), jnp.float32)
    ours, theirs = gradient(lambda p, x: apply(p, x)[0]), gradient(in_lax(model))
    began = time.perf_counter()
    slopes = jax.block_until_ready(ours(params, x))
    first = time.perf_counter() - began
    began = time.perf_counter()
    want = jax.block_until_ready(theirs(params, x))
    their_first = time.perf_counter() - began
    off = max(float(jnp.abs(slopes[n] - want[n]).max() / jnp.abs(want[n]).max()) for n in params)
    if off > 1e-2:
        raise app.UsageError(f"the gradients differ by {off:.2g} of the largest")
    times = interleaved(
        {
            "jaxdelegate": lambda: jax.block_until_ready(ours(params, x)),
            "lax": lambda: jax.block_until_ready(theirs(params, x)),
        },
        rounds=FLAGS.rounds,
    )
    append(
        {
            "bench": "gradients",
            "model": FLAGS.graph.rpartition("/")[2],
            "differs_by": off,
            "first_s": round(first, 2),
            "lax_first_s": round(their_first, 2),
            **{f"{name}_ms": round(1e3 * float(np.median(t)), 1) for name, t in times.items()},
            "ratio": {n: round(v, 3) for n, v in ratios(times, "lax")["jaxdelegate"].items()},
        },
        FLAGS.out,
    )


if __name__ == "__main__":
    app.run(main)
