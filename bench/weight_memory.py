"""Memory of weights on the device: a quantized model against the same model in float32.

    python bench/weight_memory.py --graph=model_int8.tflite --float_graph=model.tflite \\
        [--most=0.4] [--out=bench/results/weight_memory.jsonl]

Megabytes of constants in the program: prepared arguments that stay on the device (`resident`), and
the constants of its optimized HLO (`baked`), small ones that XLA may have upcast or folded.
`stored` are the same tensors in the file's dtypes: the difference is what a CPU widens for speed.
`scratch` is the program's working memory: activations, and what it widens while it runs. The exit
status is 1 if the integer mode holds more than `--most` times the float32 model.
"""

import dataclasses
import math
import re
import sys
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from harness import append

import jaxdelegate as jd
from jaxdelegate.device_weights import ModelWeights
from jaxdelegate.lowering import partition as lowering
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.passes import propagation
from jaxdelegate.pjrt import client
from jaxdelegate.xla.aot import compile_partition

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "A quantized .tflite.", required=True)
flags.DEFINE_string("float_graph", None, "The same network in float32.", required=True)
flags.DEFINE_float("most", 0.4, "The largest ratio, integer mode over float32, that passes.")
flags.DEFINE_string("out", None, "A file to append the JSON line to.")


@dataclasses.dataclass
class Megabytes:
    """The memory of one model's program."""

    resident: float  # arguments
    baked: float
    stored: float  # resident and baked, in the file's dtypes
    scratch: float

    @property
    def held(self) -> float:
        """What is on the device while the program is idle."""
        return self.resident + self.baked


def measure(path: str, quant_mode: Any) -> Megabytes:
    """Compile the whole model as one partition.

    Raises:
        LoweringError: an operator is not lowered.
    """
    graph = jd.load(path).graph
    subgraph = graph.subgraphs[0]
    context = LoweringContext(platform=jax.default_backend(), quant_mode=quant_mode)
    in_reach = Callees(graph.subgraphs, context).in_context()
    specs = dict(enumerate(propagation.subgraph_specs(subgraph, None, graph.subgraphs)))
    partition = lowering.lower_partition(
        subgraph.operators, specs, subgraph.inputs, subgraph.outputs, in_reach
    )
    program = compile_partition(partition, ModelWeights(client.of_jax(jax.devices()[0])))
    stored = {w.tensor: partition.outside(w.tensor).const for w in partition.preparations}
    executable: Any = program.executable
    return Megabytes(
        sum(array.nbytes for array in program.constants) / 2**20,
        constant_bytes(executable.as_text()) / 2**20,
        sum(array.nbytes for array in stored.values() if array is not None) / 2**20,
        executable.memory_analysis().temp_size_in_bytes / 2**20,
    )


def constant_bytes(hlo: str) -> int:
    """The bytes of all constants in a program's text, such as `f32[3,32]{1,0} constant(`."""
    total = 0
    for bits, sizes in re.findall(r"= [a-z]+(\d*)\[([\d,]*)\]\S* constant\(", hlo):
        elements = math.prod(int(size) for size in sizes.split(",") if size)
        total += elements * max(int(bits or 8) // 8, 1)  # pred's name has no number of bits
    return total


def main(_argv: list[str]) -> None:
    of = {
        "float32": measure(FLAGS.float_graph, "float_view"),
        "integer": measure(FLAGS.graph, "integer"),
        "float_view": measure(FLAGS.graph, "float_view"),
    }
    ratio = of["integer"].held / of["float32"].held
    append(
        {
            "bench": "weight_memory",
            "graph": Path(FLAGS.graph).name,
            "float_graph": Path(FLAGS.float_graph).name,
            "device": str(jax.devices()[0]),
            "mb": {name: dataclasses.asdict(m) | {"held": m.held} for name, m in of.items()},
            "ratio": ratio,
            "stored_ratio": of["integer"].stored / of["float32"].stored,
            "most": FLAGS.most,
        },
        FLAGS.out,
    )
    if ratio > FLAGS.most:
        sys.exit(f"integer mode holds {ratio:.2f} of the float32 weights, more than {FLAGS.most}")


if __name__ == "__main__":
    app.run(main)
