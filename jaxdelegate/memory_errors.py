"""The message for an error of a device; if memory is short, the sizes, and what helps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from jaxdelegate.device_errors import is_out_of_memory
from jaxdelegate.pjrt import client
from jaxdelegate.program import Partition, Program

if TYPE_CHECKING:
    from jaxdelegate.op_lowering.spec import TensorSpec

_MEMORY = {
    "cpu": "a higher limit of the process (`ulimit -v`, the container's)",
    "gpu": "a larger share of the device (XLA_CLIENT_MEM_FRACTION, .75 unless set; fewer processes "
    "on it)",
    "tpu": "fewer processes on the device",
}


def of_partition(error: BaseException, platform: str, partition: Partition) -> str:
    """The message for a partition that was being compiled, or whose weights were being moved."""
    if not is_out_of_memory(error):
        return str(error)
    specs = partition.specs
    weights = [i for i, spec in specs.items() if spec.const is not None]
    groups = (weights, partition.params.inputs, partition.outputs)
    held, read, written = (_bytes(specs, indices) for indices in groups)
    sizes = (
        f"{held} of weights, {read} of inputs and {written} of results; what XLA adds for "
        "temporaries is not known before it is compiled"
    )
    return _message(error, f"The partition has {sizes}", platform)


def of_program(error: BaseException, platform: str, program: Program) -> str:
    """The message for a program that was running."""
    if not is_out_of_memory(error):
        return str(error) or type(error).__name__
    constants = sum(map(client.nbytes, program.constants))
    plan = program.executable.memory_analysis()
    sizes = f"{_in_words(sum(map(client.nbytes, program.weights)))} of weights"
    if plan is not None:  # some backends do not report it
        sizes += (
            f", {_in_words(plan.argument_size_in_bytes - constants)} of inputs, "
            f"{_in_words(plan.output_size_in_bytes)} of results and "
            f"{_in_words(plan.temp_size_in_bytes)} of temporaries"
        )
    return _message(error, f"The program takes {sizes}", platform)


def _message(error: BaseException, sizes: str, platform: str) -> str:
    shorter = "" if platform == "cpu" else ", compute_dtype='float16' or 'bfloat16'"
    # On a GPU further lines list buffers; they stay with the cause.
    said = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    return f"{said}. {sizes}. What helps: a smaller batch{shorter}, or {_MEMORY[platform]}"


def _bytes(specs: Mapping[int, TensorSpec], indices: Iterable[int]) -> str:
    held = (specs[i] for i in indices if not specs[i].dtype.hasobject)
    return _in_words(sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in held))


def _in_words(nbytes: int) -> str:
    """`1.5 GiB`; below 1 KiB `12 bytes`."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit}"
    return f"{nbytes} bytes"
