"""Spot keywords in a stream of sound: 20 ms in each invoke, with state in the interpreter.

    pip install '.[examples]'
    python examples/keywords.py [SOUND.wav]

Prints each word and its time. Without SOUND.wav (16 kHz, 16 bits, mono) it generates a sound and
prints its words.
"""

import sys
import wave

import numpy as np

import jaxdelegate
from jaxdelegate.interpreter import Interpreter
from sample_tasks import sounds

if sys.argv[1:]:
    with wave.open(sys.argv[1]) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
else:
    sound = sounds.sound(seed=1)
    samples = sound.samples
    print("spoken:", ", ".join(f"{w.name} ({w.start:.2f} to {w.end:.2f} s)" for w in sound.spoken))

delegate = jaxdelegate.JaxDelegate()
interpreter = Interpreter(model_content=sounds.network(), experimental_delegates=[delegate])
interpreter.allocate_tensors()
given = interpreter.get_input_details()[0]["index"]
scores = interpreter.get_output_details()[0]["index"]
stream = []
for frame in sounds.features(samples):  # one row of 32 features for each 20 ms
    interpreter.set_tensor(given, frame[None])
    interpreter.invoke()  # reads and writes SVDF's variable tensors, on the device
    stream.append(interpreter.get_tensor(scores)[0])
interpreter.reset_all_variables()  # before the next sound
for word in sounds.heard(np.stack(stream)):
    print(f"{word.seconds:5.2f} s  {word.name:<8} {word.score:.2f}")
