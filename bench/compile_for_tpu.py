"""What XLA:TPU compiles a model to, on a machine without a TPU: fusions, products, memory.

    python bench/compile_for_tpu.py --graph=a.tflite,mobilenet_v1 [--batch=1,128]
        [--compute_dtype=bfloat16,float32] [--quant_mode=float_view]
        [--hlo=folder] [--out=bench/results/compile_for_tpu.jsonl]
    python bench/compile_for_tpu.py --again=bench/results/compile_for_tpu.jsonl --models=folder

It needs libtpu (`pip install "jax[tpu]"`), but no TPU: XLA compiles the whole model for one chip of
a TPU v5e, as JaxDelegate does. Nothing runs, so there are no times. `products` are convolutions and
matrix products, which the matrix unit computes; if they are fewer than the model's `convolutions`,
some are sums of taps. `moved_mb` is what the compiler's own cost analysis reports, `least_mb` what
ideal fusion would move (bench/roofline.py).
"""

from typing import Any

import absent_device
import hlo_text
import jax
from absent_device import Case
from absl import app
from harness import AbsentError

absent_device.define_flags("bfloat16")


def measure(case: Case, device: jax.Device) -> dict[str, Any]:
    """The parts of the program, bytes in MB.

    Raises:
        AbsentError: as `absent_device.compiled`.
    """
    executable = absent_device.compiled(case, device)
    text = executable.as_text()
    absent_device.keep_text(case, text)
    found = hlo_text.kernels(text)
    return {
        "fusions": sum(k.opcode == "fusion" for k in found),
        "products": hlo_text.products(text),
        "convolutions": absent_device.convolutions(case),
        "host_calls": hlo_text.host_calls(found),
        "moved_mb": absent_device.accessed(executable),
        "mb": absent_device.megabytes(executable),
        **absent_device.least(case),
    }


def main(_argv: list[str]) -> None:
    try:
        device = absent_device.tpu()
    except AbsentError as error:
        raise app.UsageError(str(error)) from error
    absent_device.run("compile_for_tpu", device, lambda case: measure(case, device))


if __name__ == "__main__":
    app.run(main)
