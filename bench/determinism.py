"""Does the same file give the same bits? Runs each model in several settings and compares outputs.

    python bench/determinism.py [--out=bench/results/determinism.jsonl] FILES

For each .tflite file, on one seeded input: twice by one interpreter; by another one, which compiles
it again; by four threads at once, from a cache on disk; by another process that compiles it, and by
one that loads the stored program. A line names those whose bits differ from the first run's.
Variable tensors are reset before each run; what an initialization subgraph has set is not, so that
a model that counts calls differs when it is run twice.
"""

import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from absl import app, flags
from harness import append, last_line

import jaxdelegate as jd
from jaxdelegate.testing.running import random_inputs

FLAGS = flags.FLAGS
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")
flags.DEFINE_string("child", None, "Only print digests; programs are stored in this folder.")

THREADS = 4


def opened(path: str, directory: str | None) -> jd.Interpreter:
    delegate = jd.JaxDelegate(serialization_dir=directory)
    return jd.Interpreter(path, experimental_delegates=[delegate])


def digest(interpreter: jd.Interpreter) -> str:
    """A digest of all outputs for the seeded inputs."""
    details = interpreter.get_input_details()
    arrays = random_inputs(details)
    for detail, array in zip(details, arrays, strict=True):
        if tuple(detail["shape"]) != array.shape:  # an empty or open dimension
            interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    interpreter.reset_all_variables()
    for detail, array in zip(details, arrays, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    found = hashlib.sha256()
    for output in interpreter.get_output_details():
        value = np.asarray(interpreter.get_tensor(output["index"]))
        found.update(repr((value.shape, value.dtype.str)).encode())
        found.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
    return found.hexdigest()


def digests(path: str, directory: str) -> dict[str, str]:
    """The digests of all settings within this process, which leaves a program in `directory`."""
    first = opened(path, directory)
    found = {"first": digest(first), "twice": digest(first)}
    found["another"] = digest(opened(path, None))
    with ThreadPoolExecutor(THREADS) as threads:
        distinct = set(threads.map(lambda _: digest(opened(path, directory)), range(THREADS)))
    found["threads"] = distinct.pop() if len(distinct) == 1 else "several results"
    return found


def by_child(paths: list[str], directory: str) -> dict[str, str]:
    """The digests that another process computes."""
    command = [sys.executable, __file__, f"--child={directory}", *paths]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(argv: list[str]) -> int:
    logging.getLogger("jaxdelegate").setLevel(logging.ERROR)
    paths = argv[1:]
    if FLAGS.child is not None:
        print(json.dumps({path: digest(opened(path, FLAGS.child)) for path in paths}))
        return 0
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as stored, tempfile.TemporaryDirectory() as empty:
        for path in paths:
            try:
                found[path] = digests(path, stored)
            except (jd.JaxDelegateError, ValueError) as error:
                print(f"{Path(path).name}: left out: {last_line(error)}", file=sys.stderr)
        compiled, loaded = by_child(list(found), empty), by_child(list(found), stored)
    differing = {}
    for path, own in found.items():
        ways = {**own, "process": compiled[path], "from_cache": loaded[path]}
        others = [way for way, value in ways.items() if value != own["first"]]
        if others:
            differing[Path(path).name] = others
    append(
        {
            "bench": "determinism",
            "models": [Path(path).name for path in found],
            "ways": ["first", "twice", "another", "threads", "process", "from_cache"],
            "differing": differing,
        },
        FLAGS.out,
    )
    return 1 if differing else 0


if __name__ == "__main__":
    app.run(main)
