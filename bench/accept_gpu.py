"""Ten minutes: is jaxdelegate correct on this machine's GPU, and how fast is it?

    python bench/accept_gpu.py [--out=accept_gpu.jsonl] [--minutes=10]
        [--platform=gpu] [--networks=mobilenet_v2,resnet50] [--batches=1,128]
        [--columns=float16,float32,integer,float_view] [--rounds=30] [--seconds=5]
        [--notests] [--select=EXPRESSION] [--jobs=6] [--clients=1,16,64] [--bundle=FILE]
        [--noswitches]

It needs the repository, jaxdelegate installed with its extra for CUDA, and pytest, but no network
and no files: networks are built in memory with random weights (tests/support/). Other engines take
part if they are installed: torch, and onnxruntime-gpu (with onnx and onnxscript, which write its
files). An absent engine is listed with the reason; an engine that computes on the CPU is absent.

It runs `pytest -m gpu`, then bench/compare.py for each network, batch and dtype, each in its own
process: engines are checked before they are timed, and rounds are interleaved. PyTorch's
max-autotune, which compiles for minutes, and torch.compile without CUDA graphs come last. Before
them bench/serve_language_models.py measures 1, 16 and 64 clients of a server with a language model,
a small one with random weights or `--bundle`, and bench/gpu_switches.py each switch of docs/gpu.md
on and off, to recommend its default; both have not run on a GPU yet. `--out`
gets a JSON line for each; the table (.md) and, where matplotlib is installed, the plot (.png) are
written next to it. Run it again to continue: what has a line is not measured again. The exit status
is 1 if a test failed, one of our engines did not run, or a client got a wrong text.

To try the script on a machine without a GPU: --platform=cpu --networks=small_bert --rounds=3
--clients=1,2.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from absl import app, flags
from accept_report import failures, plot, table
from harness import append, last_line
from matrix import CORES, Case, lines, measure, pending

from jaxdelegate.demo.mobilenet import mobilenet_v1
from tests.support.attention_networks import bert_small
from tests.support.networks import deeplab_v3, mobilenet_v2, resnet50

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "accept_gpu.jsonl", "The file to append JSON lines to.")
flags.DEFINE_string("platform", "gpu", "gpu or tpu; cpu only to try the script.")
flags.DEFINE_list("networks", [], "Names; unset: all of full size.")
flags.DEFINE_list("columns", [], "Of float16, float32, integer, float_view; unset: all.")
flags.DEFINE_list("batches", ["1", "128"], "How many images.")
flags.DEFINE_float("minutes", 10.0, "No further measurement starts after these.", 0.0)
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_float("seconds", 5.0, "No further round after these, once five are done.", 0.0)
flags.DEFINE_float("timeout", 600.0, "Seconds that one process may take.", 1.0)
flags.DEFINE_bool("tests", True, "Run tests/gpu first.")
flags.DEFINE_string("select", None, "Only these tests: pytest's -k.")
flags.DEFINE_list("clients", ["1", "16", "64"], "Of the server, at once; empty: no server.")
flags.DEFINE_bool("switches", True, "Measure the switches of docs/gpu.md on and off.")
flags.DEFINE_string("bundle", None, "A .litertlm for the server; unset: one of random weights.")
flags.DEFINE_integer("jobs", 6, "Processes for the tests, if pytest-xdist is installed.", 1)

ROOT = Path(__file__).parents[1]
NETWORKS: dict[str, Callable[[], bytes]] = {
    "mobilenet_v2": mobilenet_v2,
    "resnet50": resnet50,
    "bert_small": bert_small,
    "deeplab_v3": deeplab_v3,
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2_int8": lambda: mobilenet_v2(quantized=True),
}
# Only on request: to try the script.
SMALL: dict[str, Callable[[], bytes]] = {
    "small_mobilenet_v2": lambda: mobilenet_v2(size=32, width=0.25, classes=10),
    "small_mobilenet_v2_int8": lambda: mobilenet_v2(
        size=32, width=0.25, classes=10, quantized=True
    ),
    "small_bert": lambda: bert_small(length=8, layers=1, hidden=16, heads=2, vocabulary=50),
}
_INT8 = "_int8"
# The delegate's options, most important first; those of quantized files have a quant_mode.
COLUMNS: dict[str, dict[str, str]] = {
    "float16": {"compute_dtype": "float16"},
    "float32": {},
    "integer": {"quant_mode": "integer"},
    "float_view": {"quant_mode": "float_view"},
}
_OURS = ("litert_xnnpack", "jaxdelegate", "jaxdelegate_on_device")


def _both(*names: str) -> tuple[str, ...]:
    """Each engine with arrays on the host, and with arrays on the device."""
    return tuple(f"{name}{where}" for name in names for where in ("", "_on_device"))


_USUAL = (
    *_OURS,
    "litert_gpu",
    *_both("pytorch", "pytorch_cuda_graphs", "onnxruntime", "onnxruntime_tensorrt"),
)
_SLOW = _both("pytorch_compile", "pytorch_max_autotune")
_QUANTIZED = (*_OURS, "litert_gpu", "jaxdelegate_float_twin")
_PROBE = """
import json, sys, jax
device = jax.devices(sys.argv[1])[0]
print(json.dumps({"device": str(device), "kind": device.device_kind, "count": jax.device_count()}))
"""


def the_device(platform: str) -> dict[str, Any]:
    """The platform's devices, found by a child process so that this one does not occupy them.

    Raises:
        app.UsageError: it has none.
    """
    command = [sys.executable, "-c", _PROBE, platform]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        said = asked.stderr.strip().splitlines()
        raise app.UsageError(
            f"JAX finds no {platform} here: {said[-1] if said else 'no message'}. docs/gpu.md says "
            "how to install it; --platform=cpu tries this script without one"
        )
    found: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return found


def run_tests(platform: str, select: str | None, jobs: int) -> dict[str, Any]:
    """Run `pytest -m gpu` and return a record; `failed` counts errors as well."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "gpu"), "-m", "gpu", "-q"]
        command += [f"--junit-xml={report}", "-p", "no:cacheprovider"]
        command += ["-k", select] if select else []
        if importlib.util.find_spec("xdist"):
            command += ["-n", str(jobs), "-p", "no:benchmark"]  # which would warn of -n: an error
        environment = {**os.environ, "JAXDELEGATE_GPU_PLATFORM": platform}
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        start = time.perf_counter()
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
        seconds = time.perf_counter() - start
        counts = counted(report) if report.exists() else None
    said = ended.stdout.decode(errors="replace").strip().splitlines()
    found = {"bench": "accept_tests", "select": select, "seconds": seconds}
    if counts is None or not counts["tests"]:
        return {**found, "not_run": said[-1] if said else "pytest did not start: is it installed?"}
    return {**found, **counts}


def counted(report: Path) -> dict[str, Any]:
    """How many tests passed, failed and were skipped, and the names of those that failed."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    bad = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(c.find("skipped") is not None for c in cases)
    return {
        "tests": len(cases),
        "failed": len(bad),
        "skipped": skipped,
        "failures": [c.get("name") for c in bad],
    }


def cases(
    graphs: Mapping[str, Path], columns: Sequence[str], batches: Sequence[int], platform: str
) -> Iterator[Case]:
    """Most important first; what compiles for minutes comes last, compared with ours once more."""
    is_slow = importlib.util.find_spec("torch") is not None
    for engines in (_USUAL, (*_OURS, *_SLOW)) if is_slow else ((*_USUAL, *_SLOW),):
        for column in columns:
            options = {"platform": platform, **COLUMNS[column]}
            for batch in batches:
                for name, graph in graphs.items():
                    if name.endswith(_INT8) != ("quant_mode" in options):
                        continue
                    if not name.endswith(_INT8):
                        yield Case(graph, "float32", batch, len(CORES), options, engines)
                    elif engines[: len(_USUAL)] == _USUAL:
                        yield Case(graph, "int8", batch, len(CORES), options, _QUANTIZED)


def built(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The networks as files, since bench/compare.py and other engines read those.

    Raises:
        app.UsageError: an unknown name.
    """
    makers, wanted = NETWORKS | SMALL, names or [*NETWORKS]
    if unknown := {*wanted} - {*makers}:
        raise app.UsageError(
            f"--networks: no {', '.join(sorted(unknown))}; there are {', '.join(makers)}"
        )
    found = {name: folder / f"{name}.tflite" for name in wanted}
    for name, path in found.items():
        path.write_bytes(makers[name]())
    return found


def run_server(platform: str, clients: Sequence[str], out: Path) -> None:
    """Append the record of bench/serve_language_models.py, or the reason for none."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(FLAGS.bundle or Path(folder) / "random.litertlm")
        dtype = "float32" if platform == "cpu" else "float16"
        command = [sys.executable, str(Path(__file__).with_name("serve_language_models.py"))]
        command += [str(bundle), f"--platform={platform}", f"--compute_dtype={dtype}"]
        command += [f"--slots={max(map(int, clients))}", f"--rounds={FLAGS.rounds // 10 or 1}"]
        command += [*(f"--clients={n}" for n in clients), f"--out={out}"]
        # The engine that knows the right texts shares the device's memory with the server.
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        try:
            if not FLAGS.bundle:
                bundle.write_bytes(random_bundle())
            ended = subprocess.run(
                command, env=environment, timeout=FLAGS.timeout, capture_output=True, check=False
            )
            refused = last_line(RuntimeError(ended.stderr.decode(errors="replace")))
        except (ImportError, subprocess.TimeoutExpired) as error:
            refused = last_line(error)
        else:
            if ended.returncode == 0:
                return
    append({"bench": "serve_language_models", "refused": refused}, str(out), echo=False)


def run_switches(platform: str, out: Path) -> None:
    """Append the records of bench/gpu_switches.py, which has a process for each switch."""
    command = [sys.executable, str(Path(__file__).with_name("gpu_switches.py")), f"--out={out}"]
    command += [f"--platform={platform}", f"--rounds={FLAGS.rounds}", f"--timeout={FLAGS.timeout}"]
    command += [f"--bundle={FLAGS.bundle}"] if FLAGS.bundle else []
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)


def random_bundle() -> bytes:
    """A language model of one wide attention layer; an ImportError without the extra `lm`."""
    models = importlib.import_module("tests.support.language_models")
    model = models.language_model(hidden=1024, capacity=1024, prefill=(32, 128))
    content: bytes = models.language_bundle(model=model)
    return content


def extra_arguments(case: Case) -> list[str]:
    # Integer mode has the bits of LiteRT's reference kernels, which are slow.
    reference = "exact" if case.options.get("quant_mode") == "integer" else "plain"
    found = [f"--rounds={FLAGS.rounds}", f"--seconds={FLAGS.seconds}", f"--reference={reference}"]
    if case.platform == "gpu":
        found.append("--roofline=datasheet")
    float_graph = case.graph.with_name(case.graph.name.replace(_INT8, ""))
    if case.kind == "int8" and float_graph.exists():
        found.append(f"--float_graph={float_graph}")
    return found


def columns() -> list[str]:
    wanted: list[str] = FLAGS.columns or [*COLUMNS]
    if unknown := {*wanted} - {*COLUMNS}:
        raise app.UsageError(
            f"--columns: no {', '.join(sorted(unknown))}; there are {', '.join(COLUMNS)}"
        )
    return wanted


def report(out: Path) -> list[str]:
    """Write the table and the plot; return the reasons to reject the machine."""
    records = lines(out)
    text = table(records)
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    plot(records, out.with_suffix(".png"))
    return failures(records)


def main(_argv: list[str]) -> None:
    out, until = Path(FLAGS.out), time.perf_counter() + 60 * FLAGS.minutes
    wanted, batches = columns(), [int(n) for n in FLAGS.batches]
    device = the_device(FLAGS.platform)
    print(f"{device['count']} x {device['kind']}")
    tested = [r for r in lines(out) if r["bench"] == "accept_tests" and "tests" in r]
    if FLAGS.tests and not tested:
        found = run_tests(FLAGS.platform, FLAGS.select, FLAGS.jobs)
        append({**device, **found}, str(out), echo=False)
    has_served = any(r["bench"] == "serve_language_models" for r in lines(out))
    if any(FLAGS.clients) and not has_served:
        run_server(FLAGS.platform, FLAGS.clients, out)
    if FLAGS.switches and not any(r["bench"] == "gpu_switches" for r in lines(out)):
        run_switches(FLAGS.platform, out)
    with tempfile.TemporaryDirectory() as folder:
        graphs = built(Path(folder), FLAGS.networks)
        matrix = pending(cases(graphs, wanted, batches, FLAGS.platform), out)
        left = measure(matrix, extra_arguments, out, timeout=FLAGS.timeout, until=until)
    reasons = report(out)
    if left:
        print(f"{len(left)} measurements are left: run the same command again")
    if reasons:
        sys.exit("\n".join(reasons))


if __name__ == "__main__":
    app.run(main)
