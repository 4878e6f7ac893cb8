"""Find objects in an image with a network that ends in TFLite_Detection_PostProcess.

    pip install '.[examples]'
    python examples/detect.py [IMAGE]

Prints where operators run, objects, and the path of a drawing. Without IMAGE: a generated one.
"""

import sys
import tempfile

import numpy as np
from PIL import Image

import jaxdelegate
from jaxdelegate.interpreter import Interpreter
from sample_tasks.drawing import draw
from sample_tasks.tasks import TASKS

task = TASKS["detection"]
image = task.picture(seed=1)
if sys.argv[1:]:
    image = np.asarray(Image.open(sys.argv[1]).convert("RGB"))

delegate = jaxdelegate.JaxDelegate()
interpreter = Interpreter(model_content=task.network(), experimental_delegates=[delegate])
print(delegate.report())  # the custom operator is also delegated
interpreter.allocate_tensors()
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], task.inputs(image))
interpreter.invoke()
# Boxes, classes, scores and the count, in the order of the file's outputs.
outputs = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]

annotation = task.decode(outputs)
for box in annotation.boxes:
    corners = f"({box.left:.2f}, {box.top:.2f}) to ({box.right:.2f}, {box.bottom:.2f})"
    print(f"{box.label.name:<9} {box.label.score:.2f}  {corners}")
Image.fromarray(draw(image, annotation)).save(path := f"{tempfile.mkdtemp()}/detected.png")
print("wrote", path)
