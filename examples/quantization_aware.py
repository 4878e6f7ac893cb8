"""Quantization-aware training of an int8 network with bad ranges by its float network.

Prints the path of the file, which is evaluated in integers, as on devices.
It needs optax: `pip install '.[examples]'`.
"""

import tempfile

import ai_edge_litert.interpreter as litert
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxdelegate
from jaxdelegate.testing.running import run_once
from sample_tasks.tasks import TASKS

task, REFERENCE = TASKS["classification"], litert.OpResolverType.BUILTIN_REF
images = np.concatenate([task.inputs(task.picture(seed)) for seed in range(80)])
scores, _ = jaxdelegate.load(task.network())(images)  # the float network's: [80, 6]
model = jaxdelegate.load(task.network(quantized=True))
apply, params = model.function(weights="fake_quantized", ranges="learned")
params |= {name: params[name] * 0.4 for name in model.scales}  # too small, as from few samples
slopes = jax.jit(jax.grad(lambda p, x, y: -(y * jnp.log(apply(p, x)[0] + 1e-6)).sum(1).mean()))
optimizer, tuned = optax.adam(1e-3), params
memory = optimizer.init(params)
for batch in [slice(i, i + 16) for i in (0, 16, 32)] * 8:
    updates, memory = optimizer.update(slopes(tuned, images[batch], scores[batch]), memory)
    updates |= {n: 40 * tuned[n] * updates[n] for n in model.scales}  # 4% of a scale, about
    tuned = optax.apply_updates(tuned, updates)
for name, weights in (("before", params), ("after", tuned)):  # held-out images
    model.save(file := f"{tempfile.mkdtemp()}/tuned.tflite", weights)
    exact, _ = model.exact(weights)(images[48:])
    stock = litert.Interpreter(file, experimental_op_resolver_type=REFERENCE)
    found, _ = run_once(stock, [images[48:]])
    agreement = np.mean(exact.argmax(1) == scores[48:].argmax(1))
    print(f"{name}: agrees with the float network in {agreement:.0%},", end=" ")
    print(f"{np.sum(found != exact)} of {found.size} results differ from stock LiteRT's: {file}")
