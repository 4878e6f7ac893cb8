"""Engines side by side on one model: ours three ways, XNNPACK, OpenVINO, ONNX Runtime.

    NPROC=1 taskset -c 0 python bench/compare.py --graph=model.tflite [--batch=1] [--rounds=30]
        [--onnx=model.onnx] [--platform=gpu] [--compute_dtype=float16]
        [--out=bench/results/compare.jsonl]

Every engine's outputs are compared with LiteRT's reference kernels before anything is timed; one
that disagrees is reported, not timed. Rounds are interleaved; ratios to XNNPACK are taken round by
round. NPROC is how many threads XLA:CPU and the others get. An engine that is not installed, or
that cannot read the model, is named with the reason. Setting inputs and reading outputs is timed.
"""

import dataclasses
import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType
from harness import append, interleaved, ratios, spread

import jaxdelegate as jd
from jaxdelegate.testing.running import random_inputs
from jaxdelegate.testing.tolerance import NETWORK

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "The .tflite.", required=True)
flags.DEFINE_string("onnx", None, "The same model for ONNX Runtime (python -m tf2onnx.convert).")
flags.DEFINE_integer("batch", 1, "First dimension of every input.", 1)
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_string("platform", None, "Of the delegate: cpu, gpu; unset: JAX's default.")
flags.DEFINE_string("compute_dtype", None, "Of the delegate; unset: float32.")
flags.DEFINE_bool("precision_loss", None, "The delegate's is_precision_loss_allowed.")
flags.DEFINE_string("quant_mode", "float_view", "The delegate's, for quantized models.")
flags.DEFINE_list("engines", None, "Only these; unset: all.")
flags.DEFINE_string("out", None, "A file to append the JSON line to.")

Arrays = Sequence[np.ndarray]
Run = Callable[[Arrays], list[np.ndarray]]
# float16 and bfloat16 engines are compared by a hundredth of the largest output.
_SHORT = dataclasses.replace(NETWORK, of_largest=1e-2)


class AbsentError(Exception):
    """An engine that is not here, or that cannot run the model; the text says why."""


def options() -> dict[str, Any]:
    given = {
        "platform": FLAGS.platform,
        "compute_dtype": FLAGS.compute_dtype,
        "is_precision_loss_allowed": FLAGS.precision_loss,
        "quant_mode": FLAGS.quant_mode,
    }
    return {name: value for name, value in given.items() if value is not None}


def _interpreter(interpreter: Any, arrays: Arrays) -> Run:
    """Either interpreter: set, invoke, get."""
    details = interpreter.get_input_details()
    for detail, array in zip(details, arrays, strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    try:
        interpreter.allocate_tensors()
    except RuntimeError as error:  # as a RESHAPE to a fixed batch
        raise AbsentError(str(error).splitlines()[-1]) from error
    inputs = [d["index"] for d in details]
    outputs = [d["index"] for d in interpreter.get_output_details()]

    def run(given: Arrays) -> list[np.ndarray]:
        for index, array in zip(inputs, given, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(i) for i in outputs]

    return run


def xnnpack(content: bytes, threads: int, arrays: Arrays) -> Run:
    return _interpreter(StockInterpreter(model_content=content, num_threads=threads), arrays)


def own_interpreter(content: bytes, _threads: int, arrays: Arrays) -> Run:
    delegate = jd.JaxDelegate(**options())
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    return _interpreter(interpreter, arrays)


def in_stock_interpreter(content: bytes, threads: int, arrays: Arrays) -> Run:
    delegate = jd.JaxDelegate(**options())
    interpreter = StockInterpreter(
        model_content=content, experimental_delegates=[delegate], num_threads=threads
    )
    return _interpreter(interpreter, arrays)


def function(content: bytes, _threads: int, arrays: Arrays) -> Run:
    if FLAGS.compute_dtype or FLAGS.precision_loss:
        raise AbsentError("jd.load computes in float32")
    model = jd.load(content)
    model(*arrays)
    return lambda given: [np.asarray(y) for y in model(*given)]


def openvino(_content: bytes, threads: int, arrays: Arrays) -> Run:
    library = _module("openvino")
    core = library.Core()
    try:
        model = core.read_model(FLAGS.graph)
        model.reshape({port: list(a.shape) for port, a in zip(model.inputs, arrays, strict=True)})
        compiled = core.compile_model(
            model, "CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        )
    except RuntimeError as error:
        raise AbsentError(str(error).splitlines()[-1]) from error
    request = compiled.create_infer_request()
    return lambda given: [np.array(y) for y in request.infer(list(given)).values()]


def onnx_runtime(_content: bytes, threads: int, arrays: Arrays) -> Run:
    library = _module("onnxruntime")
    if not FLAGS.onnx:
        raise AbsentError("no --onnx given")
    settings = library.SessionOptions()
    settings.intra_op_num_threads = threads
    there = library.get_available_providers()
    wanted = (
        ["TensorrtExecutionProvider", "CUDAExecutionProvider"] if FLAGS.platform == "gpu" else []
    )
    providers = [p for p in wanted if p in there] or ["CPUExecutionProvider"]
    session = library.InferenceSession(FLAGS.onnx, settings, providers=providers)
    names = [i.name for i in session.get_inputs()]
    if len(names) != len(arrays):
        raise AbsentError(f"{FLAGS.onnx} has {len(names)} inputs")
    return lambda given: session.run(None, dict(zip(names, given, strict=True)))


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise AbsentError(f"{name} is not installed") from error


ENGINES: dict[str, Callable[[bytes, int, Arrays], Run]] = {
    "litert_xnnpack": xnnpack,
    "jaxdelegate": own_interpreter,
    "jaxdelegate_in_stock": in_stock_interpreter,
    "jaxdelegate_function": function,
    "openvino": openvino,
    "onnxruntime": onnx_runtime,
}


def inputs(content: bytes) -> list[np.ndarray]:
    details = StockInterpreter(model_content=content).get_input_details()
    for detail in details:
        if len(detail["shape"]) and detail["shape"][0] == 1:
            detail["shape"] = [FLAGS.batch, *detail["shape"][1:]]
    return random_inputs(details)


def reference(content: bytes, arrays: Arrays) -> list[np.ndarray]:
    kind = OpResolverType.BUILTIN_REF
    stock = StockInterpreter(model_content=content, experimental_op_resolver_type=kind)
    return _interpreter(stock, arrays)(arrays)


def error_of(got: Arrays, want: Arrays) -> float:
    """Largest difference of any output, by the largest value of that output."""
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        if g.shape != w.shape:
            raise AbsentError(f"output of shape {list(g.shape)} for {list(w.shape)}")
        largest = float(np.abs(w.astype(np.float64)).max(initial=0)) or 1.0
        worst = max(worst, float(np.abs(g.astype(np.float64) - w).max(initial=0)) / largest)
    return worst


def main(_argv: list[str]) -> None:
    warnings.simplefilter("ignore", UserWarning)  # LiteRT's words about its own interpreter
    content = Path(FLAGS.graph).read_bytes()
    threads = int(os.environ.get("NPROC", len(os.sched_getaffinity(0))))
    arrays = inputs(content)
    try:
        want = reference(content, arrays)
    except AbsentError as error:
        raise SystemExit(f"{FLAGS.graph} at batch {FLAGS.batch}: {error}") from error
    is_short = bool(FLAGS.compute_dtype not in (None, "float32") or FLAGS.precision_loss)
    allowed = (_SHORT if is_short else NETWORK).of_largest
    runs: dict[str, Run] = {}
    errors: dict[str, float] = {}
    absent: dict[str, str] = {}
    for name, make in ENGINES.items():
        if FLAGS.engines is not None and name not in {*FLAGS.engines, "litert_xnnpack"}:
            continue
        try:
            run = make(content, threads, arrays)
            errors[name] = error_of(run(arrays), want)
        except AbsentError as error:
            absent[name] = str(error)
            continue
        if errors[name] > allowed and name.startswith("jaxdelegate"):
            raise SystemExit(f"{name}: error {errors[name]:.2g} of the largest output")
        if errors[name] > allowed:
            absent[name] = f"disagrees: error {errors[name]:.2g} of the largest output"
        else:
            runs[name] = run
    times = interleaved(
        {name: lambda run=run: run(arrays) for name, run in runs.items()}, rounds=FLAGS.rounds
    )
    append(
        {
            "bench": "compare",
            "graph": Path(FLAGS.graph).stem,
            "batch": FLAGS.batch,
            "threads": threads,
            "device": str(jax.devices(FLAGS.platform)[0]),
            "options": options(),
            "error": errors,
            "absent": absent,
            "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
            "ratio_to_litert": ratios(times, "litert_xnnpack"),
        },
        FLAGS.out,
    )


if __name__ == "__main__":
    app.run(main)
