"""Whole processes, from exec to exit, that compute one result, with a cold and a warm cache.

    python bench/startup.py --graph=a.tflite,b.tflite [--runs=7] [--quant_mode=integer]
        [--nonative_kernels] [--out=bench/results/startup.jsonl]

Every run has its own process, and kinds take turns: "cold" fills an empty cache directory, "warm"
reuses it, "with_jax" reuses it after importing jax, "uncached" has no directory, "litert" is the
stock interpreter. Modules are loaded from bytecode, as in an installation. Milliseconds, medians:
`process` is what the parent sees, `cpu` the processor time of all threads, `start` until Python
runs the first line, `imports` of numpy and the interpreter's package, `ready` until
`allocate_tensors` returns, `first` the first inference and its result, `exit` the rest.
`over_litert` is the ratio of whole processes, run by run. Outputs of cold, warm and with_jax must
be bit-equal; LiteRT's error is recorded.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from absl import app, flags
from harness import append

FLAGS = flags.FLAGS
flags.DEFINE_list("graph", None, "Models.", required=True)
flags.DEFINE_integer("runs", 7, "Processes of each kind.", 1)
flags.DEFINE_string("quant_mode", None, "The delegate's.")
flags.DEFINE_bool("native_kernels", None, "The delegate's; unset: where they were built.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

# The code of every process. `make` opens the model; times are of the parent's clock.
_PROCESS = """
import time
begin = time.time()
import json, sys
import numpy as np
graph, directory, options = json.loads(sys.argv[1])
{imports}
imported = time.time()
{make}
interpreter.allocate_tensors()
ready = time.time()
rng = np.random.default_rng(0)
for detail in interpreter.get_input_details():
    values = rng.uniform(0, 1, detail["shape"]).astype(detail["dtype"])
    interpreter.set_tensor(detail["index"], values)
interpreter.invoke()
outputs = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
done = time.time()
stamps, output = [begin, imported, ready, done], outputs[0].ravel()[:2000].tolist()
print(json.dumps([*stamps, "jax" in sys.modules, output]))
"""
_OURS = """delegate = jd.JaxDelegate(serialization_dir=directory, **options)
interpreter = jd.Interpreter(model_path=graph, experimental_delegates=[delegate])"""
_IMPORT = "import jaxdelegate as jd; jd.Interpreter, jd.JaxDelegate"
_KINDS = {
    "cold": (_IMPORT, _OURS),
    "warm": (_IMPORT, _OURS),
    "with_jax": (f"import jax; {_IMPORT}", _OURS),
    "uncached": (_IMPORT, _OURS),
    "litert": (
        "from ai_edge_litert.interpreter import Interpreter",
        "interpreter = Interpreter(model_path=graph)",
    ),
}

Run = dict[str, Any]


def process(kind: str, graph: str, directory: str | None) -> Run:
    """One process: its times in milliseconds, whether it imported jax, and its first output."""
    imports, make = _KINDS[kind]
    script = _PROCESS.format(imports=imports, make=make)
    arguments = [sys.executable, "-c", script, json.dumps([graph, directory, _options()])]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.time()
    child = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    if child.stdout is None:
        raise RuntimeError("the process printed nothing")
    with child.stdout:
        said = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    end = time.time()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{kind}: the process exited with {child.returncode}")
    *stamps, has_jax, output = json.loads(said.splitlines()[-1])
    names = ("start", "imports", "ready", "first", "exit")
    moments = [start, *stamps, end]
    spans = {name: b - a for name, a, b in zip(names, moments, moments[1:], strict=False)}
    spans |= {"process": end - start, "cpu": usage.ru_utime + usage.ru_stime}
    ms = {name: 1e3 * span for name, span in spans.items()}
    return {"ms": ms, "jax": has_jax, "output": np.array(output, np.float64)}


def _options() -> dict[str, Any]:
    given = {"quant_mode": FLAGS.quant_mode, "native_kernels": FLAGS.native_kernels}
    return {name: value for name, value in given.items() if value is not None}


def processes(graph: str, runs: int) -> dict[str, list[Run]]:
    """All runs by kind; kinds take turns."""
    found: dict[str, list[Run]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as root:
        process("uncached", graph, None)  # so that the system reads its files from disk here
        process("litert", graph, None)
        for run in range(runs):
            directory = f"{root}/{run}"
            for kind in _KINDS:
                cache = None if kind in ("uncached", "litert") else directory
                found[kind].append(process(kind, graph, cache))
    return found


def error(found: dict[str, list[Run]]) -> float:
    """Our difference from LiteRT, as a share of the largest output.

    Raises:
        SystemExit: runs of ours differ.
    """
    want = found["cold"][0]["output"]
    for kind, runs in found.items():
        if kind != "litert" and any(not np.array_equal(run["output"], want) for run in runs):
            raise SystemExit(f"{kind}: the bits differ")
    stock = found["litert"][0]["output"]
    return float(np.abs(want - stock).max() / max(np.abs(stock).max(), 1e-6))


def medians(runs: list[Run]) -> dict[str, float]:
    return {name: round(median(run["ms"][name] for run in runs), 1) for name in runs[0]["ms"]}


def main(_argv: list[str]) -> None:
    for graph in FLAGS.graph:
        found = processes(graph, FLAGS.runs)

        def over(kind: str, found: dict[str, list[Run]] = found) -> list[float]:
            pairs = zip(found[kind], found["litert"], strict=True)
            ratios = sorted(a["ms"]["process"] / b["ms"]["process"] for a, b in pairs)
            return [round(r, 2) for r in (median(ratios), ratios[0], ratios[-1])]

        line = {
            "bench": "startup",
            "graph": Path(graph).name,
            "options": _options(),
            "runs": FLAGS.runs,
            "ms": {kind: medians(runs) for kind, runs in found.items()},
            "over_litert": {kind: over(kind) for kind in found if kind != "litert"},
            "imports_jax": {kind: runs[-1]["jax"] for kind, runs in found.items()},
            "error_of_largest": error(found),
        }
        append(line, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
