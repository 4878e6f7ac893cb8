"""Whether programs for an absent GPU and TPU are still as good as the committed figures.

    python bench/device_gates.py [--models=folder] [--update]
    python bench/device_gates.py --digests

Recompiles the cases of bench/results/compile_for_gpu.jsonl and compile_for_tpu.jsonl whose models
are in the folder or can be built in memory, and fails if a figure is worse by more than 5%. `nox -s
device_gates` runs it with jax's CUDA plugin and libtpu. --update replaces the lines.

Figures may change when lowerings do. `tests/bench/test_device_gates.py` detects that
without a compiler, by digests of what small networks are lowered to; --digests writes them.
"""

import functools
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absent_device import SHIPPED
from absl import app, flags
from roofline import batched_specs

from jaxdelegate.compile import precision_policy
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.lowering import partition as lowering
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.rewrites import registry as rewrites
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.options import DelegateOptions

FLAGS = flags.FLAGS
_GPUS = ("h100", "rtx4090")
_RESULTS = Path(__file__).with_name("results")
_COMMANDS = (
    *(("compile_for_gpu", f"--target={Path(__file__).with_name(f'{gpu}.txtpb')}") for gpu in _GPUS),
    ("compile_for_tpu",),
)
DIGESTS = _RESULTS / "lowering_digests.json"

_MARGIN = 0.05
_CASE = ("graph", "batch", "compute_dtype", "quant_mode", "compiled_for")
_LEAST, _MOST = (
    ("captured_share", "products"),
    (*("kernels", "fusions", "graphs", "moved_over_least", "wide_operations", "host_calls"),),
)

Record = Mapping[str, Any]


# ---- figures


def figures(record: Record) -> dict[str, float]:
    """The figures of a line of results that are compared."""
    found = {n: record[n] for n in (*_LEAST, *_MOST) if isinstance(record.get(n), int | float)}
    if "captured" in record:
        found["captured_share"] = record["captured"] / record["launches"]
    if record.get("moved_mb") is not None:
        found["moved_over_least"] = record["moved_mb"] / (record.get("least_mb") or 1)
    if "host_calls" in record:
        found["host_calls"] = len(record["host_calls"])
    return found


def worse(before: Record, now: Record) -> list[str]:
    """The figures of a case that are worse by more than 5%, in words."""
    if "absent" in now:
        return [] if "absent" in before else [f"does not compile: {now['absent']}"]
    old, new = figures(before), figures(now)
    lost = sorted(old.keys() - new.keys())
    found = [f"{name}: {old[name]:g} before, now not known" for name in lost]
    for name in sorted(old.keys() & new.keys()):
        change = new[name] - old[name]
        if (-change if name in _LEAST else change) > _MARGIN * old[name]:
            found.append(f"{name}: {old[name]:g} before, now {new[name]:g}")
    return found


def failures(before: Iterable[Record], now: Iterable[Record]) -> list[str]:
    """A line for each case that is worse; cases that only one side has are ignored."""
    old = {case_of(record): record for record in before}
    return [
        f"{' '.join(map(str, case_of(record)))}: {'; '.join(found)}"
        for record in now
        if (found := worse(old.get(case_of(record), {"absent": ""}), record))
    ]


def case_of(record: Record) -> tuple[Any, ...]:
    """The fields that identify a line's case."""
    return tuple(record.get(name) for name in _CASE)


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---- digests of lowerings

# Small networks that cover all paths of a GPU or a TPU: shipped ones by name, and one built here.
_INT8, _FLOAT = "classification_int8.tflite", "mobilenet_v1"
# Network, batch, dtype or the platform's short one, mode.
_LOWERED = (
    *((_FLOAT, batch, is_short, "float_view") for batch in (1, 16) for is_short in (False, True)),
    *((_INT8, 1, False, mode) for mode in ("float_view", "integer")),
)
_SHORT = {"gpu": "float16", "tpu": "bfloat16"}
# Machine-specific text in a traced function.
_OWN = re.compile(r"0x[0-9a-f]+|\S+\.py:\d+")


def digests() -> dict[str, str]:
    """Digests of the lowered networks by platform, network, batch, dtype and mode."""
    found = {}
    for platform, short in _SHORT.items():
        for name, batch, is_short, mode in _LOWERED:
            dtype = short if is_short else "float32"
            options = DelegateOptions(compute_dtype=dtype, quant_mode=mode)  # type: ignore[arg-type]
            text = _OWN.sub("", _jaxpr(_lowered(_content(name), batch, platform, options)))
            key = f"{platform} {name} {batch} {dtype} {mode}"
            found[key] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


@functools.cache
def _content(name: str) -> bytes:
    if name == _FLOAT:
        return mobilenet_v1(size=224, width=0.25, classes=8)
    return (SHIPPED / name).read_bytes()


def _lowered(
    content: bytes, batch: int, platform: str, options: DelegateOptions
) -> LoweredPartition:
    model = read_model(content)
    subgraph = model.subgraphs[0]
    policy = precision_policy.policy_here(options, platform)
    kernels = KernelSet(triton=platform == "gpu")
    context = LoweringContext(platform, policy, options.quant_mode, kernels=kernels)
    return lowering.lower_partition(
        subgraph.operators,
        dict(enumerate(batched_specs(subgraph, batch, model.subgraphs))),
        subgraph.inputs,
        subgraph.outputs,
        Callees(model.subgraphs, context).in_context(),
        rewrites=rewrites.enabled(options.rewrites),
    )


def _jaxpr(partition: LoweredPartition) -> str:
    weights = list(partition.preparations)

    def call(arrays: Sequence[Any], values: Sequence[Any]) -> Any:
        return partition.call(dict(zip(weights, arrays, strict=True)), values)

    with jax.enable_x64(True), jax.default_matmul_precision(None):
        values = [partition.outside(i) for i in (*partition.inputs, *partition.states)]
        shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]  # type: ignore[no-untyped-call]
        return str(jax.make_jaxpr(call)([partition.value(w) for w in weights], shapes))


def write_digests() -> None:
    """Put this jax's digests in the file."""
    kept = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}
    kept[jax.__version__] = digests()
    DIGESTS.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")


# ---- the command


def compiled_again(bench: str, *arguments: str) -> list[dict[str, Any]]:
    """The lines that a script writes today.

    Raises:
        CalledProcessError: it failed and printed why.
    """
    script = Path(__file__).with_name(f"{bench}.py")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.jsonl"
        files = f"--out={out}", f"--again={results(bench)}"
        subprocess.run([sys.executable, str(script), *files, *arguments], check=True)
        return records(out) if out.exists() else []


def results(bench: str) -> Path:
    """The file of a script's committed lines."""
    return _RESULTS / f"{bench}.jsonl"


def update(bench: str, now: Sequence[Record]) -> None:
    """Replace the lines of the same cases with today's."""
    new = {case_of(record): record for record in now}
    lines = [new.get(case_of(record), record) for record in records(results(bench))]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    results(bench).write_text(text, encoding="utf-8")


def main(_argv: list[str]) -> None:
    if FLAGS.digests:
        write_digests()
        return
    models = [f"--models={FLAGS.models}"] if FLAGS.models else []
    found = []
    for bench, *arguments in _COMMANDS:
        before, now = records(results(bench)), compiled_again(bench, *arguments, *models)
        found += failures(before, now)
        print(f"{bench} {' '.join(arguments)}: compiled {len(now)} of {len(before)} lines again")
        if FLAGS.update:
            update(bench, now)
    print("\n".join(found) or "nothing is worse by more than 5%")
    sys.exit(bool(found))


if __name__ == "__main__":
    flags.DEFINE_string("models", None, "The folder of the models that the results name.")
    flags.DEFINE_bool("update", False, "Replace the lines of the results.")
    flags.DEFINE_bool("digests", False, "Write digests of lowerings; compile nothing.")
    app.run(main)
