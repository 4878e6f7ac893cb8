"""Classify an image with TFLite's interpreter on XLA: which shape does it show?

    pip install '.[examples]'
    python examples/classify.py [IMAGE]

Prints each class with its score and the path of a drawing. Without IMAGE it generates a picture.
"""

import sys
import tempfile

import numpy as np
from PIL import Image

import jaxdelegate
from jaxdelegate.interpreter import Interpreter
from sample_tasks.drawing import draw
from sample_tasks.tasks import TASKS

task = TASKS["classification"]
image = task.picture(seed=3)
if sys.argv[1:]:
    image = np.asarray(Image.open(sys.argv[1]).convert("RGB"))

# With your own file: Interpreter("model.tflite", experimental_delegates=[...]).
delegate = jaxdelegate.JaxDelegate()
interpreter = Interpreter(model_content=task.network(), experimental_delegates=[delegate])
interpreter.allocate_tensors()  # compiles
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], task.inputs(image))
interpreter.invoke()
outputs = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]

annotation = task.decode(outputs)
for label in annotation.labels:
    print(f"{label.name:<9} {label.score:.3f}")
Image.fromarray(draw(image, annotation)).save(path := f"{tempfile.mkdtemp()}/classified.png")
print("wrote", path)
