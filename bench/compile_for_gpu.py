"""What XLA:GPU makes of a model, on a machine without a GPU: kernels, what they move, memory.

    python bench/compile_for_gpu.py --graph=a.tflite,b.tflite [--batch=1,128]
        [--compute_dtype=float16,float32] [--quant_mode=float_view] [--target=bench/h100.txtpb]
        [--hlo=folder] [--out=bench/results/compile_for_gpu.jsonl]

Needs jax's CUDA plugin (`pip install "jax[cuda12]"`), neither a GPU nor its driver: XLA compiles
the whole model for the GPU that `--target` describes, as JaxDelegate has it. Nothing runs: there
are no times, and no choices that XLA makes by timing (`xla_gpu_autotune_level=0`). On a GPU some
matrix products will be cuBLAS's, and their ends kernels of their own. `moved_mb` counts each
kernel's operands and results, `least_mb` what ideal fusion would move (bench/roofline.py).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")  # read once, by the plugin

import hlo_text
import jax
import numpy as np
from absl import app, flags
from harness import AbsentError, append, last_line
from jax.experimental import topologies
from roofline import batched_specs, fused

from jaxdelegate.compiler.aot import compile_partition
from jaxdelegate.compiler.program import ResidentWeights
from jaxdelegate.delegate import precision_policy
from jaxdelegate.errors import InterpreterError, LoweringError
from jaxdelegate.lowering import partition as lowering
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.rewrites import registry as rewrites
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.options import DelegateOptions
from jaxdelegate.pjrt import client

FLAGS = flags.FLAGS
flags.DEFINE_list("graph", None, "One or several .tflite.", required=True)
flags.DEFINE_list("batch", ["1"], "Batches, in place of a first dimension of 1.")
flags.DEFINE_list("compute_dtype", ["float16"], "As JaxDelegate's option.")
flags.DEFINE_string("quant_mode", "float_view", "As JaxDelegate's option.")
flags.DEFINE_string(
    "target", str(Path(__file__).with_name("h100.txtpb")), "XLA's description of a GPU."
)
flags.DEFINE_string("hlo", None, "A folder for the optimized programs' texts.")
flags.DEFINE_string("out", None, "A file to append JSON lines to.")


def described_device(target: Path) -> jax.Device:
    """A device to compile for, which is not there.

    Args:
        target: a text proto of XLA's GpuTargetConfigProto.

    Raises:
        AbsentError: jax's CUDA plugin is not installed.
    """
    text = target.read_text(encoding="utf-8")
    try:
        topology = topologies.get_topology_desc(  # type: ignore[no-untyped-call]
            "", "cuda", target_config=text, topology="1x1x1"
        )
    except (RuntimeError, NotImplementedError) as error:
        raise AbsentError(f"jax's CUDA plugin: {last_line(error)}") from error
    device: jax.Device = topology.devices[0]
    return device


class _Shapes(ResidentWeights):
    """Weights of a device that is not there: shapes and dtypes only."""

    def get(self, _weight: Any, _const: Any, value: Callable[[], Any]) -> Any:
        array = value()
        return jax.ShapeDtypeStruct(array.shape, array.dtype)  # type: ignore[no-untyped-call]


def compiled(graph: Path, batch: int, options: DelegateOptions, device: jax.Device) -> Any:
    """The whole model as one program for `device`.

    Raises:
        AbsentError: the shapes do not allow the batch, or an operator stays on the host.
    """
    model = read_model(graph)
    subgraph = model.subgraphs[0]
    policy = precision_policy.policy_for(options, "gpu", frozenset())
    context = LoweringContext(
        platform="gpu", precision=policy, quant_mode=options.quant_mode, triton_kernels=True
    )
    try:
        partition = lowering.lower_partition(
            subgraph.operators,
            dict(enumerate(batched_specs(subgraph, batch, model.subgraphs))),
            subgraph.inputs,
            subgraph.outputs,
            Callees(model.subgraphs, context).in_context(),
            rewrites=rewrites.enabled(options.rewrites),
        )
    except (InterpreterError, LoweringError) as error:
        raise AbsentError(last_line(error)) from error
    return compile_partition(partition, _Shapes(client.of_jax(device))).executable


def measure(graph: Path, batch: int, options: DelegateOptions, device: jax.Device) -> Any:
    """What the program consists of, as a record."""
    executable = compiled(graph, batch, options, device)
    text = executable.as_text()
    if FLAGS.hlo:
        name = f"{graph.stem}_{batch}_{options.compute_dtype}_{options.quant_mode}.txt"
        Path(FLAGS.hlo).mkdir(parents=True, exist_ok=True)
        (Path(FLAGS.hlo) / name).write_text(text, encoding="utf-8")
    return {**described(hlo_text.kernels(text)), "mb": megabytes(executable)}


def described(found: Sequence[hlo_text.Kernel]) -> dict[str, Any]:
    """Sums over kernels; bytes in MB."""
    return {
        "kernels": len(found),
        "kinds": hlo_text.counts(found),
        "moved_mb": sum(k.read + k.written for k in found) / 1e6,
        "float32_mb": sum(k.float32 for k in found) / 1e6,
        "host_calls": hlo_text.host_calls(found),
    }


def megabytes(executable: Any) -> dict[str, float]:
    """What the program takes on the device."""
    stats = executable.memory_analysis()
    return {
        "arguments": stats.argument_size_in_bytes / 1e6,
        "outputs": stats.output_size_in_bytes / 1e6,
        "scratch": stats.temp_size_in_bytes / 1e6,
    }


def least(graph: Path, batch: int, short: bool) -> dict[str, float | None]:
    """Arithmetic and traffic under ideal fusion; None where an operator's cost is not known."""
    model = read_model(graph)
    subgraph = model.subgraphs[0]
    try:
        specs = batched_specs(subgraph, batch, model.subgraphs)
        groups = fused(subgraph, specs, np.dtype(np.float16) if short else None)
    except (AbsentError, InterpreterError):
        return {"gflop": None, "least_mb": None}
    flops, moved = sum(g.flops for g in groups), sum(g.bytes for g in groups)
    return {"gflop": flops / 1e9, "least_mb": moved / 1e6}


def main(_argv: list[str]) -> None:
    jax.config.update("jax_platforms", "cpu")  # the plugin is not to look for a GPU
    try:
        device = described_device(Path(FLAGS.target))
    except AbsentError as error:
        raise app.UsageError(str(error)) from error
    for name in FLAGS.graph:
        for batch in map(int, FLAGS.batch):
            for dtype in FLAGS.compute_dtype:
                append(record(Path(name), batch, dtype, device), FLAGS.out)


def record(graph: Path, batch: int, dtype: str, device: jax.Device) -> dict[str, Any]:
    """One line of results, or why there are none."""
    options = DelegateOptions(compute_dtype=dtype, quant_mode=FLAGS.quant_mode)  # type: ignore[arg-type]
    head = {
        "bench": "compile_for_gpu",
        "graph": graph.name,
        "batch": batch,
        "compute_dtype": dtype,
        "quant_mode": FLAGS.quant_mode,
        "compiled_for": f"{device.device_kind}, which was not there",
    }
    try:
        found = measure(graph, batch, options, device)
    except AbsentError as error:
        return {**head, "absent": str(error)}
    return {**head, **found, **least(graph, batch, dtype in ("float16", "bfloat16"))}


if __name__ == "__main__":
    app.run(main)
