"""Files of `from_jax` in stock LiteRT, compared with TensorFlow's converter, and round trips.

    NPROC=1 taskset -c 0 python bench/from_jax.py [--tensorflow=python] [--models=folder]
        [--only=substring] [--rounds=25] [--out=bench/results/from_jax.jsonl]

Networks of flax and equinox (tests/support/jax_networks.py), each written in two ways:

from_jax    `jaxdelegate.from_jax`
converter   `jax2tf.convert` and TensorFlow's converter, in the Python that --tensorflow names: it
            has tensorflow and this process's jax. It gets the function as jax.export stores it.

Each .tflite of --models whose tensors are floats is read by `jaxdelegate.load` and written again:
`round_trip`, compared with `original`.

Of each file: bytes, operators, the share of the main graph's operators that XNNPACK takes at least,
the milliseconds of an invoke in stock LiteRT, and its error: the largest difference from `jax.jit`,
or from the original, of the largest value of that output. A wrong file is not timed. `refused` is
why there is no file.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import append, interleaved, last_line, ratios, repeated, spread, threads

import jaxdelegate as jd
from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.model.open_models import open_model
from jaxdelegate.testing.running import random_inputs
from tests.support import jax_networks
from tests.support.jax_networks import Network
from tests.support.xnnpack_share import least_share

FLAGS = flags.FLAGS
flags.DEFINE_string("tensorflow", None, "A Python that has tensorflow and this process's jax.")
flags.DEFINE_string("models", None, "A folder with .tflite files, in folders of it too.")
flags.DEFINE_string("only", "", "Only networks and models whose name holds this.")
flags.DEFINE_integer("rounds", 25, "Timed rounds.", 3)
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

_ROUNDING = 1e-5  # of the largest value, by which float32 results may differ
_ROUND_SECONDS = 5e-3  # at least, of a candidate in a round

NETWORKS: dict[str, Callable[[], Network]] = {
    "mlp": jax_networks.mlp,
    "mobile_network": lambda: jax_networks.mobile_network(size=128),
    "resnet18": lambda: jax_networks.resnet18(size=128, width=32),
    "encoder": jax_networks.encoder,
    "decode_step": lambda: jax_networks.decode_step(length=256, width=128),
    "equinox_cnn": lambda: jax_networks.equinox_cnn(width=32),
    "lstm": lambda: jax_networks.lstm(steps=50, width=64),
    "gru": lambda: jax_networks.gru(steps=50, width=64),
}

_CONVERT = """
import sys
from pathlib import Path
import jax
import tensorflow as tf
from jax.experimental import jax2tf

exported = jax.export.deserialize(bytearray(Path(sys.argv[1]).read_bytes()))

def flat(*leaves):
    args, names = jax.tree.unflatten(exported.in_tree, leaves)
    return jax.tree.leaves(exported.call(*args, **names))

specs = [tf.TensorSpec(a.shape, a.dtype, f"x{i}") for i, a in enumerate(exported.in_avals)]
converted = jax2tf.convert(flat, with_gradient=False)
module = tf.Module()
module.f = tf.function(converted, autograph=False, input_signature=specs)
functions = [module.f.get_concrete_function()]
content = tf.lite.TFLiteConverter.from_concrete_functions(functions, module).convert()
Path(sys.argv[2]).write_bytes(content)
print(tf.__version__)
"""


def converted(net: Network) -> tuple[bytes, str]:
    """The file of TensorFlow's converter, and TensorFlow's version."""
    function = jax.jit(lambda *inputs: net.function(net.params, *inputs))
    stored = jax.export.export(function, platforms=["cpu"])(*net.inputs).serialize()
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "exported"), Path(folder, "model.tflite")
        before.write_bytes(stored)
        command = [FLAGS.tensorflow, "-c", _CONVERT, str(before), str(after)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "rror: " in line]
            raise ValueError(errors[-1].rpartition("rror: ")[2] if errors else done.stderr)
        return after.read_bytes(), done.stdout.split()[-1]


def stock(content: bytes, inputs: Sequence[Any]) -> StockInterpreter:
    """A stock interpreter with its inputs set, and invoked once."""
    interpreter = StockInterpreter(model_content=content, num_threads=threads())
    interpreter.allocate_tensors()
    details = sorted(interpreter.get_input_details(), key=_place)
    for detail, value in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], np.asarray(value))
    interpreter.invoke()
    return interpreter


def _place(detail: Mapping[str, Any]) -> int:
    """TensorFlow's converter sorts tensors in its own way; their names have their places."""
    found = re.search(
        r"^(?:serving_default_x|PartitionedCall:|StatefulPartitionedCall:)(\d+)", detail["name"]
    )
    return int(found[1]) if found else 0


def results(interpreter: StockInterpreter) -> list[Any]:
    details = sorted(interpreter.get_output_details(), key=_place)
    return [interpreter.get_tensor(d["index"]) for d in details]


def error(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    return max(
        float(np.abs(np.asarray(f, np.float64) - w).max() / (np.abs(w).max() or 1))
        for f, w in zip(found, map(np.asarray, wanted), strict=True)
    )


def measure(files: Mapping[str, Any], inputs: Sequence[Any], wanted: Sequence[Any]) -> Any:
    """What the docstring names of each file, and ratios of times to those of the last right one."""
    runs = {name: stock(content, inputs) for name, content in files.items()}
    errors = {name: error(results(run), wanted) for name, run in runs.items()}
    right = {name: run for name, run in runs.items() if errors[name] <= _ROUNDING}
    first = interleaved({n: r.invoke for n, r in right.items()}, rounds=3)
    count = max(1, int(_ROUND_SECONDS / min(map(min, first.values()))))
    calls = {name: repeated(run.invoke, count) for name, run in right.items()}
    times = interleaved(calls, rounds=FLAGS.rounds)
    mains = {name: open_model(content).subgraphs[0] for name, content in files.items()}
    return {
        "bytes": {name: len(content) for name, content in files.items()},
        "operators": {name: len(main.operators) for name, main in mains.items()},
        "xnnpack_share": {
            name: least_share(files[name]) for name in files if mains[name].operators
        },
        "error": errors,
        "ms": {n: spread([1e3 * t / count for t in own]) for n, own in times.items()},
        "ratio": ratios(times, over=list(times)[-1]),
    }


def network(name: str) -> dict[str, Any]:
    net = NETWORKS[name]()
    content = jd.from_jax(net.function, *net.inputs, params=net.params)
    files, refused, version = {"from_jax": content}, {}, None
    if FLAGS.tensorflow:
        try:
            files["converter"], version = converted(net)
        except ValueError as e:
            refused["converter"] = last_line(e)
    wanted = jax.tree.leaves(jax.jit(net.function)(net.params, *net.inputs))
    return {
        "tensorflow": version,
        "refused": refused,
        **measure(files, jax.tree.leaves(net.inputs), wanted),
    }


def is_float(content: bytes) -> bool:
    tensors = (t for s in open_model(content).subgraphs for t in s.tensors)
    return all(t.quantization is None or not t.quantization.has_scale for t in tensors)


def round_trip(content: bytes) -> dict[str, Any]:
    try:
        original = StockInterpreter(model_content=content)
    except ValueError as e:
        return {"refused": {"original": last_line(e)}}
    inputs = random_inputs(original.get_input_details())
    try:
        written = jd.from_jax(jd.load(content), *inputs)
    except JaxDelegateError as e:
        return {"refused": {"round_trip": last_line(e)}}
    files = {"round_trip": written, "original": content}
    return {"refused": {}, **measure(files, inputs, results(stock(content, inputs)))}


def models() -> dict[str, bytes]:
    paths = sorted(Path(FLAGS.models).rglob("*.tflite")) if FLAGS.models else []
    contents = {path.stem: path.read_bytes() for path in paths}
    return {name: content for name, content in contents.items() if is_float(content)}


def main(_argv: list[str]) -> None:
    head = {"bench": "from_jax", "threads": threads()}
    for name in (n for n in NETWORKS if FLAGS.only in n):
        append({**head, "network": name, **network(name)}, FLAGS.out)
    for name, content in models().items():
        if FLAGS.only in name:
            append({**head, "model": name, **round_trip(content)}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
