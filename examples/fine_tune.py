"""Fine-tune the last layers of a MobileNet for pictures with a third of the brightness.

    pip install '.[examples]' && python examples/fine_tune.py [MOBILENET.tflite]
Your file takes floats from -1 to 1; its first six classes become shapes.
"""

import sys
import tempfile

import ai_edge_litert.interpreter as litert
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxdelegate
from jaxdelegate.testing.running import run_once
from network_training.samples import classification
from sample_tasks.tasks import TASKS

source = sys.argv[1] if sys.argv[1:] else TASKS["classification"].network()
model = jaxdelegate.load(source).batched("b")  # any number of images, even if the file fixes 1
cut, size = list(model.tensors)[-7], next(iter(model.tensors.values())).shape[1]
backbone, head = model.until(cut), model.from_(cut)  # the head: the last six operators
data = classification(600, seed=7).arrays  # x: uint8 [600, 64, 64, 3]; label: [600]
images = jax.image.resize(data["x"] // 3 / 127.5 - 1, (600, size, size, 3), "linear")
x = np.concatenate([backbone(part)[0] for part in np.split(images, 12)])  # computed only once
slopes = jax.jit(jax.grad(lambda m, x, y: -jnp.log(m(x)[0][jnp.arange(50), y] + 1e-6).mean()))
optimizer = optax.adam(1e-3)
memory = optimizer.init(head)  # a model is a pytree of its weights
for batch in [slice(i, i + 50) for i in range(0, 500, 50)] * 12:
    updates, memory = optimizer.update(slopes(head, x[batch], data["label"][batch]), memory)
    head = optax.apply_updates(head, updates)
for name, weights in (("before", {}), ("after", head.params)):  # named as in the whole model
    model.save(file := f"{tempfile.mkdtemp()}/fine_tuned.tflite", weights)
    stock = litert.Interpreter(file)
    found = np.concatenate([run_once(stock, [image[None]])[0] for image in images[500:]])
    print(f"{name}: stock LiteRT is right in {np.mean(found.argmax(1) == data['label'][500:]):.0%}")
print(f"{file}: its results differ from JAX's by at most {abs(found - head(x[500:])[0]).max():.1e}")
