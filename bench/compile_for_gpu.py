"""What XLA:GPU compiles a model to, on a machine without a GPU: kernels, traffic, memory.

    python bench/compile_for_gpu.py --graph=a.tflite,mobilenet_v1 [--batch=1,128]
        [--compute_dtype=float16,float32] [--quant_mode=float_view] [--target=bench/h100.txtpb]
        [--hlo=folder] [--out=bench/results/compile_for_gpu.jsonl]
    python bench/compile_for_gpu.py --again=bench/results/compile_for_gpu.jsonl --models=folder

It needs jax's CUDA plugin (`pip install "jax[cuda12]"`), but neither a GPU nor its driver: XLA
compiles the whole model for the GPU that `--target` describes, as JaxDelegate does. Nothing runs,
so there are no times, and XLA makes no choices by timing (`xla_gpu_autotune_level=0`). On a GPU
cuBLAS computes some matrix products, and their epilogues become separate kernels. `moved_mb` counts
each kernel's operands and results, `least_mb` what ideal fusion would move (bench/roofline.py);
`captured` of `launches` are in one of the `graphs` (CUDA graphs); `wide_operations` have 64-bit
results.
"""

import tempfile
from pathlib import Path
from typing import Any

import absent_device
import hlo_text
import jax
from absent_device import Case
from absl import app, flags
from harness import AbsentError

FLAGS = flags.FLAGS
absent_device.define_flags("float16")
flags.DEFINE_string(
    "target", str(Path(__file__).with_name("h100.txtpb")), "XLA's description of a GPU."
)


def measure(case: Case, device: jax.Device, dumps: Path) -> dict[str, Any]:
    """The parts of the program, bytes in MB.

    Raises:
        AbsentError: as `absent_device.compiled`.
    """
    executable = absent_device.compiled(case, device)
    text = executable.as_text()
    absent_device.keep_text(case, text)
    found = hlo_text.kernels(text)
    return {
        "kernels": len(found),
        "kinds": hlo_text.counts(found),
        **hlo_text.captured(absent_device.taken_thunks(dumps)),
        "wide_operations": hlo_text.wide_operations(text),
        "host_calls": hlo_text.host_calls(found),
        "moved_mb": sum(k.read + k.written for k in found) / 1e6,
        "float32_mb": sum(k.float32 for k in found) / 1e6,
        "mb": absent_device.megabytes(executable),
        **absent_device.least(case),
    }


def main(_argv: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dumps = Path(folder)
        try:
            device = absent_device.gpu(Path(FLAGS.target), dumps)
        except AbsentError as error:
            raise app.UsageError(str(error)) from error
        absent_device.run("compile_for_gpu", device, lambda case: measure(case, device, dumps))


if __name__ == "__main__":
    app.run(main)
