"""Count the results of a quantized model that differ from LiteRT's, in integers and in floats.

python examples/exact_integers.py [QUANTIZED.tflite]
"""

import sys
from pathlib import Path

import ai_edge_litert.interpreter as litert
import numpy as np

import jaxdelegate as jd
from jaxdelegate.testing.running import random_inputs, run_once
from sample_tasks.tasks import TASKS

RUNS = 100


def results(interpreter: jd.Interpreter | litert.Interpreter) -> np.ndarray:
    """The first output for random inputs, one row for each."""
    details = interpreter.get_input_details()
    runs = [run_once(interpreter, random_inputs(details, seed)) for seed in range(RUNS)]
    return np.array([outputs[0].ravel() for outputs in runs], np.float64)


content = (
    Path(sys.argv[1]).read_bytes()
    if sys.argv[1:]
    else TASKS["classification"].network(quantized=True)
)
kernels = litert.OpResolverType.BUILTIN_REF
want = results(litert.Interpreter(None, content, experimental_op_resolver_type=kernels))
print(f"{RUNS} inputs, {want.size} results; compared with LiteRT's reference kernels:")
print("quant_mode  differ  largest difference (of an integer result: in steps)")
for mode in ("integer", "float_view"):
    delegate = jd.JaxDelegate(quant_mode=mode)
    got = results(jd.Interpreter(None, content, experimental_delegates=[delegate]))
    print(f"{mode:10}  {np.sum(got != want):6}  {np.abs(got - want).max():g}")
