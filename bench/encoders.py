"""Times of a bundle's encoder of images: over XNNPACK, and of several images at once.

    NPROC=1 taskset -c 0 python bench/encoders.py model.litertlm transformer [--images=8]
        [--rounds=40] [--seconds=120] [--out=bench/results/encoders.jsonl]

`transformer` is a bundle that is built in memory (tests/support/vision_models.py). Engines run in
turn, in one process:

litert_xnnpack    the stock interpreter, the encoder and then the adapter, an image; pixels are
                  scaled to values as in jaxdelegate.lm
one               jaxdelegate.lm, an image
each              jaxdelegate.lm, --images images one after the other
together          jaxdelegate.lm, the same images at once, as the engine has them in runs

Before, the embeddings of jaxdelegate.lm are compared with the stock interpreter's (`error`, root
mean square, of the largest value). `ratio_to_litert` is the time of `one` to XNNPACK's, and
`speedup` that of `each` to that of `together`, round by round.
"""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import append, interleaved, ratios, spread, threads

from jaxdelegate.bundles.bundle import Bundle, open_bundle
from jaxdelegate.lm.vision.image_encoder import ImageEncoder
from jaxdelegate.lm.vision.tensors import ImageTensors, scaled, tensors_of
from jaxdelegate.lm.vision.vision_graph import ADAPTER, ENCODER, POSITIONS
from tests.support.vision_models import transformer_bundle

FLAGS = flags.FLAGS
flags.DEFINE_integer("images", 8, "Images at once.", 2)
flags.DEFINE_integer("rounds", 40, "Timed rounds.", 3)
flags.DEFINE_float("seconds", 120, "No round starts after these.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

_MOST = 0.01  # of the largest value: rounded activations move by steps of int8, which are 0.4%


def stock(bundle: Bundle, encoder: ImageEncoder, image: ImageTensors) -> Callable[[], np.ndarray]:
    """An image's embeddings by the stock interpreter."""
    step = image.step
    runners = {
        part: StockInterpreter(
            model_content=bytes(bundle.models[part].content), num_threads=threads()
        ).get_signature_runner(key)
        for part, key in encoder.graph.keys(step.key).items()
        for part in [part or ENCODER]
    }
    others = {} if image.positions is None else {POSITIONS: image.positions[None]}

    def run() -> np.ndarray:
        pixels = scaled(image.pixels, encoder.graph.form).reshape(step.images.shape)
        found = runners[ENCODER](**{step.images_name: pixels}, **others)[step.features_name]
        if ADAPTER in runners:
            if step.patches:  # LiteRT-LM passes on the image's features only
                found[..., image.places :, :] = 0
            found = runners[ADAPTER](**{step.soft_tokens: found})[step.embeddings_name]
        rows: np.ndarray = found.reshape(found.shape[-2:])[: image.places]
        return rows

    return run


def engines(path: str) -> dict[str, Callable[[], Any]]:
    """By name, what encodes images."""
    bundle = open_bundle(path)
    encoder = ImageEncoder(bundle, {"platform": "cpu"}, ":nocache", FLAGS.images)
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (FLAGS.images, 120, 160, 3)).astype(np.uint8)
    images = [tensors_of(pixels, encoder.graph) for pixels in pictures]
    run: Callable[[Sequence[ImageTensors]], list[np.ndarray]] = encoder._model.embeddings
    return {
        "litert_xnnpack": stock(bundle, encoder, images[0]),
        "one": lambda: run(images[:1])[0],
        "each": lambda: [run([image])[0] for image in images],
        "together": lambda: [*itertools.chain(*encoder._embeddings(encoder._runs(images)))],
    }


def checked(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The root mean square difference of an engine's first image, of the largest value.

    Raises:
        AssertionError: an engine is wrong.
    """
    want = runs["litert_xnnpack"]()
    found = {"one": runs["one"](), "each": runs["each"]()[0], "together": runs["together"]()[0]}
    size = np.abs(want).max()
    errors = {n: float(np.sqrt(np.square(x - want).mean()) / size) for n, x in found.items()}
    for name, error in errors.items():
        assert error <= _MOST, (name, error)
    return errors


def main(argv: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in argv[1:]:
            path = Path(folder, name)
            if name == "transformer":
                path.write_bytes(transformer_bundle())
            runs = engines(str(path))
            errors = checked(runs)
            times = interleaved(runs, rounds=FLAGS.rounds, seconds=FLAGS.seconds)
            found = {
                "bench": "encoders",
                "bundle": path.name,
                "images": FLAGS.images,
                "threads": threads(),
                "error": errors,
                "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
                "ratio_to_litert": ratios(times, "litert_xnnpack")["one"],
                "speedup": ratios(times, "together")["each"],
            }
            append(found, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
