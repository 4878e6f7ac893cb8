"""Quantization-aware training: an int8 network with bad ranges learns from its float sister.

pip install 'jaxdelegate[examples]'
python examples/quantization_aware.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxdelegate
from jaxdelegate.demo.tasks import TASKS

task = TASKS["classification"]
images = np.concatenate([task.inputs(task.picture(seed)) for seed in range(80)])
teacher, own = jaxdelegate.load(task.network()).function()
scores, _ = jax.jit(teacher)(own, images)  # the float network's: [80, 6]
model = jaxdelegate.load(task.network(quantized=True))
apply, params = model.function(weights="fake_quantized", ranges="learned")
params |= {name: params[name] * 0.4 for name in model.scales}  # as if calibrated on too little


def loss(params, x, wanted):
    return -(wanted * jnp.log(apply(params, x)[0] + 1e-6)).sum(1).mean()


def agreement(params):  # on images that training does not see
    return float((apply(params, images[48:])[0].argmax(1) == scores[48:].argmax(1)).mean())


optimizer = optax.adam(1e-3)
memory, slopes, before = optimizer.init(params), jax.jit(jax.grad(loss)), agreement(params)
for batch in [slice(i, i + 16) for i in (0, 16, 32)] * 8:
    updates, memory = optimizer.update(slopes(params, images[batch], scores[batch]), memory)
    updates |= {n: 40 * params[n] * updates[n] for n in model.scales}  # 4% of a scale, about
    params = optax.apply_updates(params, updates)
print(f"answers as the float network: {before:.0%} before, {agreement(params):.0%} after")
