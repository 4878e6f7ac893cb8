"""Start-up: from a file to a model that is ready, with a cold and a warm program cache.

    python bench/startup.py [--graph=a.tflite,b.tflite] [--runs=5] [--nonative_kernels]
        [--out=startup.jsonl]

Without --graph: MobileNet v1 1.0 224 from jaxdelegate.testing. Every run is a process of its own.
Modules come from bytecode, which the first process writes where an installation has not. Its clock
starts behind `jax.devices()` and the imports, which are reported apart, and stops when
`allocate_tensors` has returned with the program and its weights on the device; the first inference
is reported apart, too. "cold" finds an empty cache directory and fills it, "uncached" has none,
"warm" finds what a process before it left. Stock LiteRT stands beside them, with its own clock from
the same place. Milliseconds, medians; `warm_over_cold` and `warm_over_uncached` are what to look
at. Phases in threads run side by side: their sum may exceed the time to ready. `load` is what is
left of looking into the cache: waiting for the digests of constants, mostly. `ready_cpu` is the
processor time of all threads, `ready_garbage` what Python's garbage collector took on the way, in
whatever phase. Outputs of all runs are compared.
"""

import contextlib
import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from absl import app, flags
from harness import append

FLAGS = flags.FLAGS
flags.DEFINE_list("graph", [], "Models; unset: MobileNet v1 1.0 224, built by jaxdelegate.testing.")
flags.DEFINE_integer("runs", 5, "Processes of each kind.", 1)
flags.DEFINE_string("platform", None, "Where partitions run; unset: JAX's default.")
flags.DEFINE_bool("native_kernels", None, "The delegate's; unset: where they were built.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")
flags.DEFINE_string("child", None, "For the script itself: what one process measures.")

# Phase -> (module, class or None, function); nested ones are charged to themselves only.
PHASES = {
    "expect": ("jaxdelegate.cache.programs", "ProgramCache", "expect"),
    "read": ("jaxdelegate.interpreter", None, "read_model"),
    "plan": ("jaxdelegate.host", "Host", "plan"),
    "key": ("jaxdelegate.cache.programs", "ProgramCache", "slot"),
    "guess": ("jaxdelegate.cache.store", "ProgramStore", "latest"),
    "hash_constants": ("jaxdelegate.cache.constants", None, "_digests_of"),
    "sources": ("jaxdelegate.cache.sources", "Sources", "parts"),
    "find": ("jaxdelegate.cache.store", "ProgramStore", "find"),
    "executable": ("jaxdelegate.jax_private", None, "load_executable"),
    "load": ("jaxdelegate.cache.programs", "ProgramCache", "_load"),
    "wait_for_executable": ("jaxdelegate.cache.loading", "Loading", "program"),
    "read_weights": ("jaxdelegate.cache.store", "ProgramStore", "weights"),
    "to_device": ("jax", None, "device_put"),
    "lower": ("jaxdelegate.lowering", None, "lower_partition"),
    "compile": ("jaxdelegate.compiler", None, "compile_partition"),
    "store": ("jaxdelegate.cache.programs", "ProgramCache", "_save"),
}


class Phases:
    """Seconds by phase, without those of phases inside; threads' phases run side by side."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._thread = threading.local()

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        inside = self._thread.__dict__.setdefault("inside", [])
        inside.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] += spent - inside.pop()
            if inside:
                inside[-1] += spent

    def watch(self, name: str, owner: Any, function: str) -> None:
        inner: Callable[..., Any] = getattr(owner, function)

        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            with self.timed(name):
                return inner(*args, **kwargs)

        setattr(owner, function, outer)


class Collector:
    """Seconds that Python's garbage collector takes from now on."""

    def __init__(self) -> None:
        self.seconds = self._start = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._start = now
        else:
            self.seconds += now - self._start


def measure(graph: str, directory: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """One start of jaxdelegate in this process."""
    begin = time.perf_counter()
    import jax  # noqa: PLC0415 (timed)

    jax.devices()
    devices = time.perf_counter()
    import jaxdelegate as jd  # noqa: PLC0415 (timed)

    make, delegate_type = jd.Interpreter, jd.JaxDelegate
    imported = time.perf_counter()
    phases = Phases()
    for name, (module, owner, function) in PHASES.items():
        found = sys.modules[module]
        phases.watch(name, getattr(found, owner) if owner else found, function)
    collector = Collector()
    start, start_cpu = time.perf_counter(), time.process_time()
    with phases.timed("rest"):
        delegate = delegate_type(serialization_dir=directory, **options)
        interpreter = make(model_path=graph, experimental_delegates=[delegate])
        interpreter.allocate_tensors()
        _wait(interpreter)
    ready, ready_cpu = time.perf_counter(), time.process_time()
    garbage = collector.seconds
    result = _infer(interpreter)
    return {
        "import_jax": devices - begin,
        "import_jaxdelegate": imported - devices,
        "ready": ready - start,
        "ready_cpu": ready_cpu - start_cpu,
        "ready_garbage": garbage,
        "first_inference": time.perf_counter() - ready,
        **{f"phase_{name}": seconds for name, seconds in phases.seconds.items()},
        "output": result,
    }


def measure_litert(graph: str) -> dict[str, Any]:
    """One start of stock LiteRT in this process."""
    from ai_edge_litert.interpreter import Interpreter  # noqa: PLC0415 (timed)

    start = time.perf_counter()
    interpreter = Interpreter(model_path=graph)
    interpreter.allocate_tensors()
    ready = time.perf_counter()
    result = _infer(interpreter)
    return {
        "ready": ready - start,
        "first_inference": time.perf_counter() - ready,
        "output": result,
    }


def _wait(interpreter: Any) -> None:
    """Weights are moved asynchronously: ready is when they are there."""
    for step in interpreter._host(0)._steps:
        program = getattr(getattr(step, "kernel", None), "_program", None)
        for array in getattr(program, "weights", ()):
            array.block_until_ready()


def _infer(interpreter: Any) -> list[float]:
    rng = np.random.default_rng(0)
    for detail in interpreter.get_input_details():
        values = rng.uniform(0, 1, detail["shape"]).astype(detail["dtype"])
        interpreter.set_tensor(detail["index"], values)
    interpreter.invoke()
    detail = interpreter.get_output_details()[0]
    return [float(y) for y in interpreter.get_tensor(detail["index"]).ravel()[:1000]]


def child(kind: str, graph: str, directory: str | None) -> dict[str, Any]:
    """The measurements of a process of its own."""
    arguments = [kind, graph, directory, _options()]
    script = [sys.executable, str(Path(__file__).resolve()), f"--child={json.dumps(arguments)}"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(script, check=True, capture_output=True, text=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _options() -> dict[str, Any]:
    given = {"platform": FLAGS.platform, "native_kernels": FLAGS.native_kernels}
    return {name: value for name, value in given.items() if value is not None}


def run_child(arguments: str) -> None:
    kind, graph, directory, options = json.loads(arguments)
    if kind == "litert":
        print(json.dumps(measure_litert(graph)))
    else:
        print(json.dumps(measure(graph, directory, options)))


def start_times(graph: str, runs: int) -> dict[str, list[dict[str, Any]]]:
    """All runs by kind, kinds taking turns."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as root:
        child("uncached", graph, None)  # what the system reads from its disk, it reads here
        for run in range(runs):
            directory = f"{root}/{run}"
            found["cold"].append(child("cold", graph, directory))
            found["warm"].append(child("warm", graph, directory))
            found["uncached"].append(child("uncached", graph, None))
            found["litert"].append(child("litert", graph, None))
    return found


def medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    names = [name for name in runs[0] if name != "output"]
    return {name: round(1e3 * median(run.get(name, 0.0) for run in runs), 2) for name in names}


def compare(found: dict[str, list[dict[str, Any]]]) -> None:
    (want, *_) = (np.array(run["output"]) for run in found["uncached"])
    scale = max(float(np.abs(want).max()), 1e-6)
    for kind, runs in found.items():
        for run in runs:
            error = float(np.abs(np.array(run["output"]) - want).max()) / scale
            if error > (1e-3 if kind == "litert" else 0):
                raise SystemExit(f"{kind} answers differently: {error:.1e} of the largest output")


def main(_argv: list[str]) -> None:
    if FLAGS.child:
        run_child(FLAGS.child)
        return
    with tempfile.TemporaryDirectory() as root:
        for graph in FLAGS.graph or [_embedded(root)]:
            found = start_times(graph, FLAGS.runs)
            compare(found)
            ms = {kind: medians(runs) for kind, runs in found.items()}
            ready = {kind: [run["ready"] for run in runs] for kind, runs in found.items()}

            def over(kind: str, ready: dict[str, list[float]] = ready) -> float:
                pairs = zip(ready["warm"], ready[kind], strict=True)
                return round(median(warm / other for warm, other in pairs), 4)

            line = {
                "bench": "startup",
                "graph": Path(graph).name,
                "options": _options(),
                "runs": FLAGS.runs,
                "ms": ms,
                "warm_over_cold": over("cold"),
                "warm_over_uncached": over("uncached"),
            }
            append(line, FLAGS.out)


def _embedded(root: str) -> str:
    from jaxdelegate.testing.networks import mobilenet_v1  # noqa: PLC0415 (children need none)

    path = Path(root, "mobilenet_v1_1.0_224.tflite")
    path.write_bytes(mobilenet_v1())
    return str(path)


if __name__ == "__main__":
    app.run(main)
