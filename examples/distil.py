"""Distil a float network on clean pictures into an int8 network on noisy pictures.

Needs `pip install '.[examples]'`, no labels. Prints the path of the file, evaluated in integers.
"""

import tempfile

import ai_edge_litert.interpreter as litert
import jax
import numpy as np
import optax

import jaxdelegate
from jaxdelegate.testing.running import run_once
from network_training.samples import classification
from sample_tasks.tasks import TASKS

task, REFERENCE = TASKS["classification"], litert.OpResolverType.BUILTIN_REF
data = classification(600, seed=8).arrays  # x: uint8 [600, 64, 64, 3]; label: [600]
clean = data["x"] / np.float32(127.5) - 1
noisy = (clean + np.random.default_rng(0).normal(0, 0.3, clean.shape)).clip(-1, 1).astype("float32")
wanted = jax.nn.softmax(jaxdelegate.load(task.network()).until("logits")(clean)[0] / 2)
model, how = jaxdelegate.load(task.network(quantized=True)), {"weights": "fake_quantized"}
apply, params = model.until("logits").function(io="float", ranges="learned", **how)
loss = optax.losses.kl_divergence  # at the temperature 2
slopes = jax.jit(jax.grad(lambda p, x, y: loss(jax.nn.log_softmax(apply(p, x)[0] / 2), y).mean()))
optimizer, tuned = optax.adam(1e-3), params
memory = optimizer.init(params)
for batch in [slice(i, i + 25) for i in range(0, 500, 25)] * 3:
    updates, memory = optimizer.update(slopes(tuned, noisy[batch], wanted[batch]), memory)
    updates |= {n: 10 * tuned[n] * updates[n] for n in model.scales}  # 1% of a scale, about
    tuned = optax.apply_updates(tuned, updates)
for name, weights in (("before", params), ("after", tuned)):  # held-out images
    model.save(file := f"{tempfile.mkdtemp()}/distilled.tflite", weights)
    exact = model.exact(weights)(noisy[500:])[0]
    stock = litert.Interpreter(file, experimental_op_resolver_type=REFERENCE)
    found = run_once(stock, [noisy[500:]])[0]
    print(f"{name}: {np.mean(exact.argmax(1) == data['label'][500:]):.0%} right,", end=" ")
    print(f"{np.sum(found != exact)} of {found.size} results differ from stock LiteRT's: {file}")
