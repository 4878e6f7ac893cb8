"""Train the networks of `sample_tasks` and write them as .tflite files.

    pip install '.[test]'
    python examples/train_networks.py --task=pose --folder=.

`ModelBuilder` writes a file with random weights, `jaxdelegate.load(...).function()` turns it into a
pure function of its weights, `jax.grad` and Optax train them, and the trained weights replace those
in the file. Each task takes some minutes on two cores.
"""

import argparse
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import optax

import jaxdelegate
from jaxdelegate.waiting import waiting
from network_training import architectures, files, losses, measuring, samples
from sample_tasks.tasks import TASKS


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a task's network is trained."""

    network: Callable[..., bytes]  # a seed -> the file, with random weights
    make: Callable[[int, int], samples.Samples]  # from a count and a seed
    loss: Callable[..., jax.Array]
    steps: int = 2000
    batch: int = 16
    count: int = 4000  # samples


RECIPES = {
    "classification": Recipe(
        architectures.classifier, samples.classification, losses.classification, batch=32
    ),
    "detection": Recipe(architectures.detector, samples.detection, losses.detection),
    "segmentation": Recipe(architectures.segmenter, samples.segmentation, losses.segmentation),
    "pose": Recipe(architectures.poser, samples.pose, losses.pose),
    "keywords": Recipe(
        architectures.listener, samples.keywords, losses.keywords, steps=400, count=1000
    ),
}
CALIBRATION = 64  # images


def main() -> None:
    """Train, write and measure each task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", action="append", choices=RECIPES, help="default: all")
    parser.add_argument("--steps", type=int, help="of the optimizer")
    parser.add_argument("--count", type=int, help="of samples")
    parser.add_argument("--seed", type=int, default=0, help="of weights, samples and batches")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files go")
    args = parser.parse_args()
    for task in args.task or RECIPES:
        for name, content in networks(task, args.steps, args.count, args.seed):
            (args.folder / f"{name}.tflite").write_bytes(content)
            print(f"{name}.tflite: {len(content)} bytes, {measuring.accuracy(task, content)}")


def networks(
    task: str, steps: int | None, count: int | None, seed: int
) -> Iterator[tuple[str, bytes]]:
    """The name and content of a trained task's float file, then of its int8 file."""
    recipe = RECIPES[task]
    data, steps = recipe.make(count or recipe.count, seed), steps or recipe.steps
    # The operators after the scores and encodings of a detector have no useful gradient.
    options = {"decoded": False} if task == "detection" else {}
    trainable = recipe.network(seed, **options)
    params = trained(trainable, recipe.loss, data.batches(recipe.batch, steps, seed), steps)
    content = files.with_parameters(recipe.network(seed), params)
    yield task, content
    if task in TASKS:
        images = [TASKS[task].inputs(TASKS[task].picture(seed)) for seed in range(CALIBRATION)]
        yield f"{task}_int8", files.quantized(content, images)


def trained(
    content: bytes, loss: Callable[..., jax.Array], batches: Iterator[samples.Batch], steps: int
) -> dict[str, np.ndarray]:
    """The parameters of a network after `steps` steps of Adam."""
    model = jaxdelegate.load(content)
    apply, params = model.function()
    if state := model.initial_state():
        loss = functools.partial(loss, state=state)
    schedule = optax.warmup_cosine_decay_schedule(0, 4e-3, steps // 20 + 1, steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

    @jax.jit
    def step(params: dict, moments: optax.OptState, batch: dict) -> tuple:
        value, gradient = jax.value_and_grad(lambda p: loss(apply, p, batch))(params)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments, value

    moments, start = optimizer.init(params), time.perf_counter()
    for i, batch in enumerate(batches, 1):
        compiling = waiting("the first step compiles the network, forwards and backwards")
        with compiling if i == 1 else contextlib.nullcontext():
            params, moments, value = step(params, moments, batch)
        if i in (1, steps) or i % 100 == 0:
            print(f"step {i}: loss {value:.4f} ({time.perf_counter() - start:.0f} s)", flush=True)
    return {name: np.asarray(value) for name, value in params.items()}


if __name__ == "__main__":
    main()
