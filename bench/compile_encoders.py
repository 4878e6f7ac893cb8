"""The bytes that a bundle's encoders of images and sounds move, on an absent GPU or TPU.

    python bench/compile_encoders.py model.litertlm ... [--device=gpu,tpu] [--rows=1,8]
        [--compute_dtype=float16,float32] [--hlo=folder]
        [--out=bench/results/compile_encoders.jsonl]

XLA compiles the program of each encoder with its adapter as `jaxdelegate.lm` does, for an H100 or a
TPU v5e. It needs `pip install "jax[cuda12]" libtpu`, but no device, and nothing runs. `rows` are
the images, or pieces of sounds, of a run. `moved_mb` are the bytes that the program's kernels move
(`hlo_text.traffic`), `least_mb` the weights as the device has them and what ideal fusion moves of
everything else (bench/roofline.py), and `ratio` the first to the second. `products` says how many
products multiply values of which type, `float32_mb` what kernels write in float32, and `host_calls`
what runs outside of XLA. For a GPU there are also `kernels` and their `kinds`, and `captured` of
`launches` are in one of the `graphs` (CUDA graphs).
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import absent_device
import hlo_text
import jax
import numpy as np
from absl import app, flags
from harness import append
from roofline import batched_specs, fused

from jaxdelegate.bundles.bundle import open_bundle
from jaxdelegate.lm.audio.sound_encoder import SoundEncoder, takes_sounds
from jaxdelegate.lm.contents.content_encoder import ContentEncoder
from jaxdelegate.lm.contents.content_program import ContentSpec
from jaxdelegate.lm.vision.image_encoder import ImageEncoder, takes_images
from jaxdelegate.options import DelegateOptions

FLAGS = flags.FLAGS
flags.DEFINE_list("device", ["gpu", "tpu"], "What to compile for.")
flags.DEFINE_list("rows", ["1", "8"], "Images, or pieces of sounds, at once.")
flags.DEFINE_list("compute_dtype", ["float16"], "As JaxDelegate's option.")
flags.DEFINE_string("hlo", None, "A folder for the optimized programs' texts.")
flags.DEFINE_string("out", None, "A file to append JSON lines to.")
_KINDS = {"images": (ImageEncoder, takes_images), "sounds": (SoundEncoder, takes_sounds)}


def encoders(path: str) -> Iterator[tuple[str, ContentEncoder]]:
    """What a bundle encodes, and by what."""
    bundle = open_bundle(path)
    for kind, (encoder, is_taken) in _KINDS.items():
        if is_taken(bundle):
            yield kind, encoder(bundle, {"platform": "cpu"}, ":nocache")


def least(encoder: ContentEncoder, key: str, short: np.dtype | None) -> int:
    """The bytes that ideal fusion moves for a row, without constants."""
    total = 0
    for part, name in encoder.graph.keys(key).items():
        model = encoder._model._models[part]
        graph = model.subgraphs[next(s.subgraph for s in model.signatures if s.key == name)]
        specs = batched_specs(graph, 1, model.subgraphs)
        total += sum(g.bytes - g.constants for g in fused(graph, specs, short, model.subgraphs))
    return total


def measured(
    encoder: ContentEncoder, spec: ContentSpec, device: jax.Device, dtype: str, dumps: Path
) -> tuple[dict[str, Any], str]:
    """The figures of a program, and its text."""
    options = DelegateOptions(compute_dtype=dtype)  # type: ignore[arg-type]
    program = absent_device.program_of(encoder._model, spec, device, options)
    text = program.executable.as_text()  # type: ignore[attr-defined]
    short = np.dtype(np.float16) if dtype in ("float16", "bfloat16") else None
    weights, moved = absent_device.weight_bytes(program), hlo_text.traffic(text)
    ideal, kernels = weights + spec.rows * least(encoder, spec.key, short), hlo_text.kernels(text)
    found = {
        "moved_mb": moved / 1e6,
        "weights_mb": weights / 1e6,
        "least_mb": ideal / 1e6,
        "ratio": moved / ideal,
        "products": hlo_text.product_dtypes(text),
        "float32_mb": sum(k.float32 for k in kernels) / 1e6,
        "host_calls": hlo_text.host_calls(kernels),
        "mb": absent_device.megabytes(program.executable),
    }
    if device.platform != "tpu":
        found |= {"kernels": len(kernels), "kinds": hlo_text.counts(kernels)}
        found |= hlo_text.captured(absent_device.taken_thunks(dumps))
    return found, text


def main(argv: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dumps = Path(folder)
        for name in FLAGS.device:
            target = Path(__file__).with_name("h100.txtpb")
            device = absent_device.gpu(target, dumps) if name == "gpu" else absent_device.tpu()
            for path in argv[1:]:
                for kind, encoder in encoders(path):
                    key = encoder.graph.encoder_keys[-1]
                    for dtype, rows in itertools.product(FLAGS.compute_dtype, map(int, FLAGS.rows)):
                        head = {"bench": "compile_encoders", "bundle": Path(path).name}
                        head |= {"encoder": kind, "rows": rows, "compute_dtype": dtype}
                        head |= {"compiled_for": f"{device.device_kind}, which was not there"}
                        spec = ContentSpec(key, rows)
                        found, text = measured(encoder, spec, device, dtype, dumps)
                        if FLAGS.hlo:
                            Path(FLAGS.hlo).mkdir(parents=True, exist_ok=True)
                            file = f"{Path(path).stem}_{kind}_{name}_{dtype}_{rows}.txt"
                            (Path(FLAGS.hlo) / file).write_text(text, encoding="utf-8")
                        append({**head, **found}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
