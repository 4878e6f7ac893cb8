"""Find the joints of a figure with a .tflite that is called as a JAX function.

    pip install '.[examples]'
    python examples/pose.py [IMAGE]

Prints the position of each joint and the path of a drawing. Without IMAGE it generates a picture.
"""

import sys
import tempfile

import numpy as np
from PIL import Image

import jaxdelegate
from sample_tasks.drawing import draw
from sample_tasks.tasks import TASKS

task = TASKS["pose"]
image = task.picture(seed=1)
if sys.argv[1:]:
    image = np.asarray(Image.open(sys.argv[1]).convert("RGB"))

model = jaxdelegate.load(task.network())  # or a path
(heatmaps,) = model(task.inputs(image))  # a jax.Array, [1, height, width, joints]
# model(image=...) takes inputs by their names in the signature and returns a dictionary;
# model.function() returns a pure function and its weights, for jax.jit, jax.vmap and jax.grad.

annotation = task.decode([np.asarray(heatmaps)])
height, width = image.shape[:2]
for joint in annotation.key_points:
    x, y = joint.x * width, joint.y * height
    print(f"{joint.name:<15} x {x:4.0f}  y {y:4.0f}  score {joint.score:.2f}")
Image.fromarray(draw(image, annotation)).save(path := f"{tempfile.mkdtemp()}/pose.png")
print("wrote", path)
