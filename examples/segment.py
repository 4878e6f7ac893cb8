"""Segment an image with an int8 network, in integers as in LiteRT's kernels.

    pip install '.[examples]'
    python examples/segment.py [IMAGE]

Prints how much of the image each class covers, and the path of a drawing.
"""

import sys
import tempfile

import numpy as np
from PIL import Image

import jaxdelegate
from jaxdelegate.interpreter import Interpreter
from sample_tasks.drawing import draw
from sample_tasks.tasks import TASKS

task = TASKS["segmentation"]
image = task.picture(seed=4)
if sys.argv[1:]:
    image = np.asarray(Image.open(sys.argv[1]).convert("RGB"))

# Inputs and outputs are float32: the file begins with QUANTIZE and ends with DEQUANTIZE. On a GPU
# the default would compute in floats, like TFLite's GPU delegate.
delegate = jaxdelegate.JaxDelegate(quant_mode="integer")
content = task.network(quantized=True)
interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
interpreter.allocate_tensors()
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], task.inputs(image))
interpreter.invoke()
scores = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

annotation = task.decode([scores])
for number, name in enumerate(annotation.mask_names):
    print(f"{name:<10} {np.mean(annotation.mask == number):6.1%}")
Image.fromarray(draw(image, annotation)).save(path := f"{tempfile.mkdtemp()}/segmented.png")
print("wrote", path)
