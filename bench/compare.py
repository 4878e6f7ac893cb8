"""Compare engines on one model: ours, XNNPACK, OpenVINO, ONNX Runtime, and on a GPU its peers.

    NPROC=1 taskset -c 0 python bench/compare.py --graph=model.tflite [--batch=1] [--rounds=30]
        [--precision_loss] [--quant_mode=integer] [--platform=gpu] [--compute_dtype=float16]
        [--onnx=model.onnx] [--float_graph=model_float32.tflite] [--input_range=0,255]
        [--roofline=measured] [--out=bench/results/compare.jsonl]

bench/run_all.py runs it over a folder of models and a matrix of settings.

bench/agreement.py checks every engine before anything is timed; one that disagrees is listed with
its error and not timed. Rounds are interleaved, and in each an engine runs once untimed before it
is timed (not if a call takes over 0.1 s), repeatedly if that takes less than a millisecond; ratios
to XNNPACK are taken round by round. NPROC is the number of threads of XLA:CPU and the other
engines. An engine that is not installed or cannot run the model is listed with the reason; if ours
or XNNPACK cannot, the line holds that reason only. XNNPACK always computes in float32; where
precision loss is allowed, OpenVINO may compute in bfloat16.

ONNX Runtime reads what `python -m tf2onnx.convert --tflite model.tflite --opset 17 --output
model.onnx` writes: its input stays [N, H, W, C] as the .tflite's, and has the file's batch.
On a GPU, PyTorch (bench/torch_engines.py) and LiteRT's WebGPU accelerator take part as well;
`--engines=pytorch` and the like request them on a CPU, too. There float32 means float32 for all of
them: TensorFloat-32 is off. `--roofline` chooses the peaks that bound the time: measured ones, or
those of the device's datasheet (bench/device_peaks.py).
"""

import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from agreement import Arrays, Judge, file_kind, inputs, judge
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from device_peaks import datasheet_peaks
from engines import ENGINES, ON_GPU, UNJUDGED, Engine, Settings, assert_place, to_host
from harness import (
    AbsentError,
    append,
    gpu_facts,
    interleaved,
    last_line,
    ratios,
    repeated,
    spread,
    threads,
)
from onnx_engines import ONNX_ENGINES
from roofline import model_seconds, peaks_record
from torch_engines import SLOW, TORCH_ENGINES

from jaxdelegate.benchmark.peaks import measured_peaks
from jaxdelegate.compile import precision_policy
from jaxdelegate.kernels import library as kernels
from jaxdelegate.options import DelegateOptions

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "The .tflite.", required=True)
flags.DEFINE_string("onnx", None, "The same model for ONNX Runtime.")
flags.DEFINE_string("float_graph", None, "The network in float32 that a quantized file came from.")
flags.DEFINE_integer("batch", 1, "First dimension of every input.", 1)
flags.DEFINE_list("input_range", ["-1", "1"], "The least and the largest float of the inputs.")
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_float("seconds", 60.0, "No further round after these, once five are done.", 0.0)
flags.DEFINE_string("platform", None, "Of the delegate: cpu, gpu; unset: JAX's default.")
flags.DEFINE_string("compute_dtype", None, "Of the delegate; unset: float32.")
flags.DEFINE_bool("precision_loss", None, "The delegate's is_precision_loss_allowed.")
flags.DEFINE_string("quant_mode", None, "The delegate's, for quantized models.")
flags.DEFINE_list(
    "engines", None, "Only these, in addition to XNNPACK and ours; unset: the device's."
)
flags.DEFINE_enum(
    "roofline", None, ["measured", "datasheet"], "The device's peaks, and what they bound."
)
flags.DEFINE_enum(
    "reference", "exact", ["exact", "plain"], "LiteRT's kernels that define the expected outputs."
)
flags.DEFINE_string("out", None, "A file to append the JSON line to.")

_ROUND_SECONDS, _MOST_CALLS = 1e-3, 100  # of one engine in a round
OURS, OVER, STAYS = "jaxdelegate", "litert_xnnpack", "_on_device"
# The errors of engines that refuse a model; OSError: the bridge's library is not built.
_REFUSALS = (AbsentError, OSError, RuntimeError, ValueError, NotImplementedError)


def settings() -> Settings:
    given = {
        "platform": FLAGS.platform,
        "compute_dtype": FLAGS.compute_dtype,
        "is_precision_loss_allowed": FLAGS.precision_loss,
        "quant_mode": FLAGS.quant_mode,
    }
    options = {name: value for name, value in given.items() if value is not None}
    return Settings(
        Path(FLAGS.graph),
        threads=threads(),
        options=options,
        short=reduced_dtype(options),
        onnx=Path(FLAGS.onnx) if FLAGS.onnx else None,
        float_graph=Path(FLAGS.float_graph) if FLAGS.float_graph else None,
    )


def reduced_dtype(options: Mapping[str, Any]) -> np.dtype | None:
    """The dtype that the delegate may compute in; None: float32."""
    platform = jax.devices(options.get("platform"))[0].platform
    given = DelegateOptions(**options)
    wanted = precision_policy.compute_dtype(given, platform, kernels.bfloat16_gain)
    return None if wanted in ("float32", "tensorfloat32") else jax.numpy.dtype(wanted)


@dataclasses.dataclass
class Line:
    """The engines that agree, and what is recorded about them and the others."""

    runs: dict[str, Engine] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    by_yardstick: dict[str, float] = dataclasses.field(default_factory=dict)
    absent: dict[str, str] = dataclasses.field(default_factory=dict)

    def admit(self, name: str, run: Engine, outputs: Arrays, rule: Judge) -> None:
        """Check an engine's outputs.

        Raises:
            AbsentError: they are wrong.
        """
        if (why := rule.why_not(outputs)) is not None:
            raise AbsentError(why)
        self.runs[name], self.errors[name] = run, rule.error(outputs)
        times = rule.times_yardstick(outputs)
        if times is not None:
            self.by_yardstick[name] = times


def engines(of: Settings) -> dict[str, Callable[[Settings, Arrays], Engine]]:
    everything = ENGINES | ONNX_ENGINES | TORCH_ENGINES
    fit = {*everything} - SLOW if of.on_gpu else {*ENGINES, "onnxruntime"} - ON_GPU
    wanted = {*fit} if FLAGS.engines is None else {*FLAGS.engines, OURS, OVER}
    return {name: make for name, make in everything.items() if name in wanted}


def line_up(of: Settings, arrays: Arrays, rule: Judge) -> Line:
    line = Line()
    for name, make in engines(of).items():
        try:
            run = make(of, arrays)
            assert_place(name, run, of.platform)
            if name in UNJUDGED:
                line.runs[name] = run
            else:
                line.admit(name, run, [to_host(y) for y in run(arrays)], rule)
        except _REFUSALS as error:
            line.absent[name] = last_line(error)
    return line


def measured(of: Settings) -> dict[str, Any]:
    """The record of one model.

    Raises:
        AbsentError: XNNPACK or our interpreter does not run it.
    """
    content = of.graph.read_bytes()
    low, high = map(float, FLAGS.input_range)
    details = StockInterpreter(model_content=content).get_input_details()
    arrays = inputs(details, FLAGS.batch, (low, high))
    rule = judge(content, arrays, of.short, exact=FLAGS.reference == "exact")
    line = line_up(of, arrays, rule)
    for name in (OVER, OURS):
        if name in line.absent:
            raise AbsentError(f"{name}: {line.absent[name]}")
    calls = {name: lambda run=run: run(arrays) for name, run in line.runs.items()}
    times = timed(calls)
    found: dict[str, Any] = {
        "error": line.errors,
        "error_by_yardstick": line.by_yardstick,
        "absent": line.absent,
        "devices": {name: run.device for name, run in line.runs.items()},
        "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
        "ratio_to_litert": ratios(times, OVER),
        "ratio_to_peer": ratios_to_peers(times, {n: r.platform for n, r in line.runs.items()}),
    }
    if "jaxdelegate_float_twin" in times:
        found["ratio_to_float_twin"] = ratios(times, "jaxdelegate_float_twin")[OURS]
    return found


def timed(calls: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of one call in each round.

    A round calls a small model repeatedly, as a server does: after a single untimed call the caches
    still have what the engine before left there.
    """
    first = {n: min(t) for n, t in interleaved(calls, rounds=1, warmup=1).items()}
    count = math.ceil(min(_ROUND_SECONDS / min(first.values()), _MOST_CALLS))
    several = {name: repeated(call, count) for name, call in calls.items()}
    times = interleaved(several, rounds=FLAGS.rounds, warmup=1, settle=1, seconds=FLAGS.seconds)
    return {name: [t / count for t in own] for name, own in times.items()}


def ratios_to_peers(
    times: Mapping[str, list[float]], platforms: Mapping[str, str]
) -> dict[str, Any]:
    """Our time over that of the fastest peer on the same kind of device, by where arrays lie."""
    found = {}
    for where, own in (("host", OURS), ("device", f"{OURS}{STAYS}")):
        peers = [
            name
            for name in times
            if not name.startswith(OURS)
            and name.endswith(STAYS) == (where == "device")
            and platforms[name] == platforms[OURS]
        ]
        if own in times and peers:
            fastest = min(peers, key=lambda name: np.median(times[name]))
            found[where] = {"peer": fastest, **ratios(times, fastest)[own]}
    return found


def bound(of: Settings) -> dict[str, Any]:
    """The least time that the roofline allows for arrays on the device."""
    device = jax.devices(FLAGS.platform)[0]
    dtype = np.dtype(np.float32) if of.short is None else of.short
    try:
        if FLAGS.roofline == "measured":
            peaks = measured_peaks(device, dtype)
        else:
            peaks = datasheet_peaks(device.device_kind, _arithmetic(of, dtype))
    except AbsentError as error:
        return {"no_roofline": str(error)}
    try:
        ms = 1e3 * model_seconds(of.graph, FLAGS.batch, peaks, of.short)
    except AbsentError as error:
        return {"peaks": peaks_record(peaks), "no_roofline": str(error)}
    return {"peaks": peaks_record(peaks), "roofline_ms": ms}


def _arithmetic(of: Settings, dtype: np.dtype) -> np.dtype:
    return np.dtype(np.int8) if of.options.get("quant_mode") == "integer" else dtype


def main(_argv: list[str]) -> None:
    warnings.simplefilter("ignore", UserWarning)  # LiteRT's words about its own interpreter
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # room for the other engines
    if FLAGS.compute_dtype != "tensorfloat32":
        os.environ["NVIDIA_TF32_OVERRIDE"] = (
            "0"  # cuBLAS, cuDNN and TensorRT, whichever library calls them
        )
    of = settings()
    try:
        found = measured(of)
        if FLAGS.roofline:
            found |= bound(of)
    except AbsentError as error:
        found = {"refused": str(error)}
    append(
        {
            "bench": "compare",
            "graph": of.graph.stem,
            "batch": FLAGS.batch,
            "threads": of.threads,
            "device": str(jax.devices(FLAGS.platform)[0]),
            "device_kind": jax.devices(FLAGS.platform)[0].device_kind,
            "gpu": gpu_facts() if of.on_gpu else None,
            "engines": FLAGS.engines or [],
            "options": dict(of.options),
            "kind": file_kind(of.graph.read_bytes()),
            **found,
        },
        FLAGS.out,
    )


if __name__ == "__main__":
    app.run(main)
