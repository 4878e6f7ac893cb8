"""Embed all images of a directory, in batches, and print the nearest neighbors of each.

    pip install '.[examples]'
    python examples/embed_directory.py [DIRECTORY]

Without DIRECTORY it uses generated pictures, named after their content.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import jaxdelegate
from sample_tasks.tasks import TASKS

BATCH = 8
task = TASKS["classification"]
directory = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
if not sys.argv[1:]:
    for seed in range(24):
        shown, truth = task.picture(seed), task.example(seed).truth
        Image.fromarray(shown).save(directory / f"{truth.labels[0].name}{seed:02}.png")

paths = sorted(p for p in directory.iterdir() if p.suffix in {".png", ".jpg", ".jpeg"})
inputs = [task.inputs(np.asarray(Image.open(path).convert("RGB"))) for path in paths]
model = jaxdelegate.load(task.network())
features = []
for start in range(0, len(inputs), BATCH):  # a smaller last batch is compiled separately
    batch = np.concatenate(inputs[start : start + BATCH])
    features.append(model(image=batch)["features"])  # the network's other output
vectors = np.concatenate(features)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
likeness = vectors @ vectors.T  # cosines
for path, row in zip(paths, likeness, strict=True):
    near = [f"{paths[i].name} {row[i]:.2f}" for i in np.argsort(-row)[:4] if paths[i] != path]
    print(f"{path.name:<15}", ", ".join(near[:3]))
