"""Find sounds in a recording with a model for one window, in batches.
python examples/audio_batches.py [--model=M.tflite --wav=MONO_16_BIT.wav] [--platform=gpu]
"""

import argparse
import tempfile
import time
import wave

import jax
import numpy as np
from models.tones import tone_detector, tones

import jaxdelegate as jd

path, parser = f"{tempfile.mkdtemp()}/detections.csv", argparse.ArgumentParser()
for name, value in {"model": "", "wav": "", "platform": "", "batch": 32, "threshold": 0.5}.items():
    parser.add_argument(f"--{name}", type=type(value), default=value)
flags = parser.parse_args()
device = jax.devices(flags.platform or None)[0]  # a missing platform is an error
jax.config.update("jax_default_device", device)
model = jd.load(flags.model or tone_detector())
_, window = next(iter(model.inputs.values())).shape
rate, audio = 48000, tones(seconds=150)
if flags.wav:
    with wave.open(flags.wav) as file:
        rate, audio = file.getframerate(), np.frombuffer(file.readframes(-1), np.int16) / 2**15
count = -(-audio.size // window)
batches = np.zeros((-(-count // flags.batch), flags.batch, 1, window), np.float32)
batches.ravel()[: audio.size] = audio
apply, params = model.function()
run = jax.jit(jax.vmap(apply, (None, 0))).lower(params, batches[0]).compile()
start = time.perf_counter()
scores = np.concatenate([run(params, batch)[0][:, 0] for batch in batches])[:count]
seconds = time.perf_counter() - start
i, label = np.nonzero(scores > flags.threshold)
rows = np.column_stack([i * window / rate, (i + 1) * window / rate, label, scores[i, label]])
np.savetxt(path, rows, "%.2f,%.2f,%d,%.3f", header="start_s,end_s,class,score", comments="")
print(f"{count / seconds:.0f} windows per second on {device.platform}; wrote {path}")
