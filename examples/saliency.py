"""Draw the pixels that determine a class: the gradient of a .tflite by its input.

    pip install '.[examples]' && python examples/saliency.py [IMAGE]

Prints the path of a drawing: the network's input, and next to it the weight of each pixel.
"""

import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import jaxdelegate
from sample_tasks.tasks import TASKS

task = TASKS["classification"]
image = task.picture(seed=1)
if sys.argv[1:]:
    image = np.asarray(Image.open(sys.argv[1]).convert("RGB"))
x = task.inputs(image)  # [1, 64, 64, 3]

apply, params = jaxdelegate.load(task.network()).function()
other, best = np.argsort(apply(params, x)[0][0])[-2:]


def margin(x):
    scores, _ = apply(params, x)  # probabilities [1, classes] and features
    return jnp.log(scores[0, best]) - jnp.log(scores[0, other])


saliency = np.abs(jax.jit(jax.grad(margin))(x)[0]).max(axis=-1)
pictures = [(x[0] + 1) * 127.5, np.repeat(saliency[..., None] / saliency.max() * 255, 3, axis=2)]
path = f"{tempfile.mkdtemp()}/saliency.png"
Image.fromarray(np.hstack(pictures).astype(np.uint8)).resize((512, 256)).save(path)
row, column = np.unravel_index(saliency.argmax(), saliency.shape)
print(f"{task.names[best]}, not {task.names[other]}: row {row}, column {column} most; {path}")
