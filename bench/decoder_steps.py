"""A decoder's step inside one `lax.scan` on a device: weights as the file stores them, or floats.

    python bench/decoder_steps.py --platform=gpu [--compute_dtype=float16]
        [--weights=float,int8,int4,int4_block32] [--rows=1,16,128] [--layers=2] [--width=4096]
        [--rounds=20] [--out=bench/results/decoder_steps.jsonl]

The layers have no attention (tests/support/decoders.py). Few rows take as long as the weights are
read: `of_bandwidth` is the share of the device's bandwidth that reading these weights once would
need, where bench/device_peaks.py knows the device. First, a step's result is compared with that of
the numpy reference (`error`, of the largest value).
"""

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from device_peaks import DATASHEETS
from harness import append, interleaved, spread

import jaxdelegate as jd
from tests.support.decoders import FLOAT32, INT4, INT8, chain

FLAGS = flags.FLAGS
flags.DEFINE_string("platform", "gpu", "gpu, tpu or cpu.")
flags.DEFINE_string("compute_dtype", "float16", "The delegate's option.")
flags.DEFINE_list("weights", ["float", "int8", "int4", "int4_block32"], "Of the filters.")
flags.DEFINE_list("rows", ["1", "16", "128"], "Rows at a time.")
flags.DEFINE_integer("layers", 2, "How many.", 1)
flags.DEFINE_integer("width", 4096, "Of the rows.", 32)
flags.DEFINE_integer("steps", 16, "In one scan.", 1)
flags.DEFINE_integer("rounds", 20, "Timed rounds.", 3)
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

_WEIGHTS = {
    "float": (FLOAT32, 0),
    "int8": (INT8, 0),
    "int4": (INT4, 0),
    "int4_block32": (INT4, 32),
}
_MOST = 2e-2  # of the largest value, in float16


def measure(path: Path, name: str) -> list[dict[str, Any]]:
    dtype, block = _WEIGHTS[name]
    path.write_bytes(chain(1, dtype, block, layers=FLAGS.layers, width=FLAGS.width))
    options = {"platform": FLAGS.platform, "compute_dtype": FLAGS.compute_dtype}
    apply, params = jd.load(path, options).function(weights="prepared")
    reference = jd.Interpreter(str(path)).get_signature_runner("decode")
    held = sum(leaf.nbytes for leaf in params.values())

    @jax.jit
    def steps(params: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (apply(params, x)[0], None), x, length=FLAGS.steps)[0]

    records = []
    for rows in map(int, FLAGS.rows):
        x = np.random.default_rng(0).normal(size=(rows, FLAGS.width)).astype(np.float32)
        want, got = reference(x=x[:1])["y"], jax.jit(apply)(params, x)[0][:1]
        error = float(np.abs(got - want).max() / np.abs(want).max())
        assert error <= _MOST, (name, rows, error)
        given = jax.device_put(x, next(iter(params.values())).devices().pop())
        run = lambda given=given: jax.block_until_ready(steps(params, given))  # noqa: E731
        times = interleaved({"ours": run}, rounds=FLAGS.rounds)["ours"]
        us = spread([1e6 * t / FLAGS.steps for t in times])
        records.append({"rows": rows, "weights_mb": held / 1e6, "error": error, "us": us})
    return records


def main(_argv: list[str]) -> None:
    kind = jax.devices(FLAGS.platform)[0].device_kind
    datasheet = DATASHEETS.get(kind)
    head = {"bench": "decoder_steps", "device_kind": kind, "compute_dtype": FLAGS.compute_dtype}
    head |= {"layers": FLAGS.layers, "width": FLAGS.width}
    with tempfile.TemporaryDirectory() as folder:
        for name in FLAGS.weights:
            for record in measure(Path(folder) / f"{name}.tflite", name):
                if datasheet is not None:
                    least = record["weights_mb"] / datasheet.memory * 1e3
                    record["of_bandwidth"] = least / record["us"]["median"]
                append({**head, "weights": name, **record}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
