"""Cold loads of every model in a folder: from the file to a ready model, without a cache.

    python bench/cold_loads.py --models=folder [--modes=default,integer] [--runs=3]
        [--at_least_kb=40] [--out=cold_loads.jsonl]

Every load has its own process. Its clock starts after the imports and stops when
`allocate_tensors` returns. `wall` and `cpu`, of all threads, are seconds, those of the fastest
run by `cpu`; `xla` is XLA's part of `wall`; the rest is Python, which reads, plans, traces and
lowers. `operations` are StableHLO's. The table has the slowest first.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import app, flags
from harness import append, last_line

FLAGS = flags.FLAGS
flags.DEFINE_string("models", None, "A folder with .tflite files, in folders of it too.")
flags.DEFINE_list("modes", ["default", "integer"], "Values of quant_mode; default: JaxDelegate's.")
flags.DEFINE_integer("runs", 1, "Processes for each model and mode.", 1)
flags.DEFINE_integer("at_least_kb", 0, "Smaller files are left out.", 0)
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")
flags.DEFINE_list("child", None, "For the script itself: the graph and the mode of one load.")


def measure(graph: str, mode: str) -> dict[str, Any]:
    """Load once in this process."""
    import jax  # noqa: PLC0415 (for children only)

    import jaxdelegate as jd  # noqa: PLC0415
    from jaxdelegate.xla import aot  # noqa: PLC0415

    xla, programs = [0.0], []

    def note(event: str, seconds: float, **_labels: Any) -> None:
        xla[0] += seconds if event == "/jax/core/compile/backend_compile_duration" else 0

    def seen(options: Any, lowered: Any, inner: Any = aot.compiled_with) -> Any:
        programs.append(lowered)
        return inner(options, lowered)

    jax.devices()
    make, options = jd.Interpreter, {} if mode == "default" else {"quant_mode": mode}
    delegate = jd.JaxDelegate(**options)
    jax.monitoring.register_event_duration_secs_listener(note)
    aot.compiled_with = seen
    wall, cpu = time.perf_counter(), time.process_time()
    make(model_path=graph, experimental_delegates=[delegate]).allocate_tensors()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "wall": round(wall, 3),
        "cpu": round(cpu, 3),
        "xla": round(xla[0], 3),
        "operations": sum(program.as_text().count(" = ") for program in programs),
    }


def load(graph: Path, mode: str) -> dict[str, Any]:
    """The fastest of several loads, or the error if one fails."""
    script = [sys.executable, str(Path(__file__).resolve()), f"--child={graph},{mode}"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    found = []
    for _ in range(FLAGS.runs):
        done = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            return {"error": last_line(RuntimeError(done.stderr))}
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return min(found, key=lambda run: float(run["cpu"]))


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each model and mode that could be loaded."""
    yield f"{'model':60} {'mode':10} {'wall':>6} {'cpu':>6} {'xla':>6} {'operations':>10}"
    for r in sorted(results, key=lambda r: -float(r["cpu"])):
        numbers = f"{r['wall']:6.2f} {r['cpu']:6.2f} {r['xla']:6.2f} {r['operations']:10}"
        yield f"{r['graph'][-60:]:60} {r['mode']:10} {numbers}"


def main(_argv: list[str]) -> None:
    if FLAGS.child:
        print(json.dumps(measure(*FLAGS.child)))
        return
    folder, results = Path(FLAGS.models), []
    for graph in sorted(folder.rglob("*.tflite")):
        if graph.stat().st_size < FLAGS.at_least_kb << 10:
            continue
        for mode in FLAGS.modes:
            name = {"graph": str(graph.relative_to(folder)), "mode": mode}
            result = {**name, **load(graph, mode)}
            append({"bench": "cold_loads", **result}, FLAGS.out, echo=False)
            if "error" not in result:
                results.append(result)
    print("\n".join(table(results)))


if __name__ == "__main__":
    app.run(main)
