"""Is memory flat while a process serves for hours? Threads use, resize, load and drop models.

    nice -n 10 python bench/soak.py --minutes=60 --out=bench/results/soak.jsonl [FILES]

FILES are .tflite files, of which stateful ones are left out; without any, networks are built in
memory. Each thread draws ACTIONS at random, one after the other; every result must be bit-equal to
the first one for the same file, shape and kind of engine. Every ten seconds a line records the
process's memory, files and threads.

The verdict leaves out the warm-up (a sixth of the time), and compares the medians of the first and
the last sixth of what follows: anonymous resident memory may grow by 2%, and open files and threads
not at all. The exit status is 1 if one does, or if a result differed.
"""

import json
import logging
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from harness import append, rss_anon_mb

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.testing.running import random_inputs, run_once
from tests.support.networks import small_classifier

FLAGS = flags.FLAGS
flags.DEFINE_float("minutes", 60, "How long, including the warm-up.", 0.05)
flags.DEFINE_integer("threads", 4, "How many threads call at the same time.", 1)
flags.DEFINE_list("actions", [], "Only these actions, to find out which one grows; none: all.")
flags.DEFINE_float("every", 10, "Seconds between two samples.", 0.1)
flags.DEFINE_integer("seed", 0, "Of the order of actions.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

GROWTH = 0.02
BATCHES = (1, 2, 3, 5)
MANY_BATCHES = tuple(
    range(1, 25)
)  # more than a delegate caches programs for, so that some are compiled again


class Soak:
    """What all threads share: models, inputs, first results, and errors."""

    def __init__(self, contents: dict[str, bytes], directory: str) -> None:
        self.contents, self.directory = contents, directory
        self.delegate = jd.JaxDelegate()
        self.cached = jd.JaxDelegate(serialization_dir=directory)
        self.results: dict[Any, list[np.ndarray]] = {}
        self.errors: list[str] = []
        self.done: dict[str, int] = {}
        self.stop = threading.Event()
        self.lock = threading.Lock()
        for name in [name for name in contents if self._has_state(name)]:
            print(f"{name}: left out, it is stateful")
            del contents[name]
        self.resizable = [name for name in contents if self._takes_batches(name)]

    def _has_state(self, name: str) -> bool:
        interpreter = self.new(self.delegate, name)
        first, second = (run_once(interpreter, self.inputs(interpreter)) for _ in range(2))
        return any(a.tobytes() != b.tobytes() for a, b in zip(first, second, strict=True))

    def _takes_batches(self, name: str) -> bool:
        try:
            interpreter = self.new(self.delegate, name)
            run_once(interpreter, self.inputs(interpreter, 2))
        except (jd.JaxDelegateError, ValueError):
            return False
        return True

    def inputs(self, interpreter: jd.Interpreter, batch: int | None = None) -> list[np.ndarray]:
        """Inputs from a seed, for the declared shapes or with another first dimension."""
        details = interpreter.get_input_details()
        if batch is not None:
            details = [{**d, "shape": np.array([batch, *d["shape"][1:]])} for d in details]
        return random_inputs(details)

    def check(self, key: Any, results: list[np.ndarray]) -> None:
        """Compare with the first result for the key."""
        with self.lock:
            first = self.results.setdefault(key, results)
        for a, b in zip(first, results, strict=True):
            if a.tobytes() != b.tobytes():
                raise AssertionError(f"{key}: a result differs from the first one")

    def new(self, delegate: jd.JaxDelegate | None, name: str) -> jd.Interpreter:
        return jd.Interpreter(
            model_content=self.contents[name],
            experimental_delegates=None if delegate is None else [delegate],
        )


class Worker:
    """One thread with interpreters that it keeps, and others that it drops."""

    def __init__(self, soak: Soak, seed: int) -> None:
        self.soak, self.rng = soak, random.Random(seed)
        self.kept: dict[str, jd.Interpreter] = {}

    def any_name(self) -> str:
        return self.rng.choice(list(self.soak.contents))

    def run(self) -> None:
        actions = {name: ACTIONS[name] for name in FLAGS.actions or ACTIONS}
        names, weights = list(actions), [weight for weight, _ in actions.values()]
        while not self.soak.stop.is_set():
            (name,) = self.rng.choices(names, weights)
            try:
                actions[name][1](self)
            except Exception as error:
                self.soak.errors.append(f"{name}: {type(error).__name__}: {error}")
                self.soak.stop.set()
                raise
            with self.soak.lock:
                self.soak.done[name] = self.soak.done.get(name, 0) + 1

    def serve(self) -> None:
        """Many calls of interpreters that are kept."""
        name = self.any_name()
        if name not in self.kept:
            self.kept[name] = self.soak.new(self.soak.delegate, name)
        interpreter = self.kept[name]
        batch = 1 if name in self.soak.resizable else None
        for _ in range(10):
            self.soak.check(
                (name, batch, "xla"), run_once(interpreter, self.soak.inputs(interpreter, batch))
            )

    def resize(self) -> None:
        """Resize interpreters that are kept."""
        if not self.soak.resizable:
            return
        name = self.rng.choice(self.soak.resizable)
        if name not in self.kept:
            self.kept[name] = self.soak.new(self.soak.delegate, name)
        batch = self.rng.choice(MANY_BATCHES if name == self.soak.resizable[0] else BATCHES)
        interpreter = self.kept[name]
        arrays = self.soak.inputs(interpreter, batch)
        self.soak.check((name, batch, "xla"), run_once(interpreter, arrays))

    def compile(self) -> None:
        """Compile in a new interpreter, and drop it."""
        self._once(self.soak.delegate)

    def drop_delegate(self) -> None:
        """Compile in a new interpreter and delegate, and drop both."""
        self._once(jd.JaxDelegate())

    def load_stored(self) -> None:
        """Load a program from disk in a new interpreter, and drop it."""
        self._once(self.soak.cached)

    def _once(self, delegate: jd.JaxDelegate) -> None:
        name = self.any_name()
        interpreter = self.soak.new(delegate, name)
        results = run_once(interpreter, self.soak.inputs(interpreter))
        self.soak.check((name, None, "xla"), results)

    def reference(self) -> None:
        """Run an interpreter without a delegate, and drop it."""
        name = min(self.soak.contents, key=lambda n: len(self.soak.contents[n]))
        interpreter = self.soak.new(None, name)
        results = run_once(interpreter, self.soak.inputs(interpreter))
        self.soak.check((name, None, "reference"), results)

    def function(self) -> None:
        """Load a model as a JAX function, call it, and drop it."""
        name = self.rng.choice(self.soak.resizable or list(self.soak.contents))
        inputs = self.soak.inputs(self.soak.new(None, name))
        results = [np.asarray(a) for a in jd.load(self.soak.contents[name])(*inputs)]
        self.soak.check((name, None, "function"), results)


# Weight, action. Compilations are rare: a server calls far more often than it loads.
ACTIONS: dict[str, tuple[float, Callable[[Worker], None]]] = {
    "serve": (10, Worker.serve),
    "resize": (4, Worker.resize),
    "compile": (1, Worker.compile),
    "drop_delegate": (1, Worker.drop_delegate),
    "load_stored": (4, Worker.load_stored),
    "reference": (1, Worker.reference),
    "function": (1, Worker.function),
}


def sample(start: float, soak: Soak) -> dict[str, Any]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "bench": "soak",
        "seconds": round(time.monotonic() - start, 1),
        "rss_anon_mb": round(rss_anon_mb(), 2),
        "rss_file_mb": round(int(fields["RssFile"].split()[0]) / 1024, 2),
        "open_files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": int(fields["Threads"]),
        "mappings": Path("/proc/self/maps").read_bytes().count(b"\n"),
        "blocks": sys.getallocatedblocks(),
        "done": dict(soak.done),
    }


def note(line: dict[str, Any]) -> None:
    """Print a sample, and append it to the file; the verdict's line has the machine."""
    print(json.dumps(line), flush=True)
    if FLAGS.out:
        with Path(FLAGS.out).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def verdict(samples: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Compare the medians of the first and the last sixth after the warm-up."""
    after = [s for s in samples if s["seconds"] >= seconds / 6] or samples
    count = max(len(after) // 6, 1)
    ends = {
        name: (
            statistics.median(s[name] for s in after[:count]),
            statistics.median(s[name] for s in after[-count:]),
        )
        for name in ("rss_anon_mb", "open_files", "threads", "mappings", "blocks")
    }
    memory, files, threads = ends["rss_anon_mb"], ends["open_files"], ends["threads"]
    growth = memory[1] / memory[0] - 1
    is_flat = growth <= GROWTH and files[1] <= files[0] and threads[1] <= threads[0]
    return {"bench": "soak", "first_and_last": ends, "growth": round(growth, 4), "is_flat": is_flat}


def main(argv: list[str]) -> int:
    logging.getLogger("jaxdelegate").setLevel(logging.ERROR)
    contents = {Path(name).name: Path(name).read_bytes() for name in argv[1:]}
    contents = contents or {
        "small_classifier": small_classifier(),
        "mobilenet_v1": mobilenet_v1(size=32, width=0.25),
    }
    with tempfile.TemporaryDirectory() as directory:
        soak, seconds = Soak(contents, directory), 60 * FLAGS.minutes
        workers = [Worker(soak, FLAGS.seed + i) for i in range(FLAGS.threads)]
        threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
        start, samples = time.monotonic(), []
        for thread in threads:
            thread.start()
        while time.monotonic() - start < seconds and not soak.stop.wait(FLAGS.every):
            samples.append(sample(start, soak))
            note(samples[-1])
        soak.stop.set()
        for thread in threads:
            thread.join()
        samples.append(sample(start, soak))
        note(samples[-1])
        result = verdict(samples, seconds)
        append(
            {
                **result,
                "minutes": FLAGS.minutes,
                "workers": FLAGS.threads,
                "models": list(contents),
                "resizable": soak.resizable,
                "errors": soak.errors,
            },
            FLAGS.out,
        )
    return 0 if result["is_flat"] and not soak.errors else 1


if __name__ == "__main__":
    app.run(main)
