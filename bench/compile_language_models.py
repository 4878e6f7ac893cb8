"""The bytes of one decode step, or of reading prompts, on an absent GPU or TPU.

    python bench/compile_language_models.py model.litertlm ... [--device=gpu,tpu] [--slots=1,16]
        [--compute_dtype=float16] [--kv_cache_dtype=auto] [--prompt=191] [--hlo=folder]
        [--out=bench/results/compile_language_models.jsonl]

XLA compiles the program that generates tokens as `jaxdelegate.lm` does, for an H100 or a TPU v5e.
It needs `pip install "jax[cuda12]" libtpu`, but no device, and nothing runs. `step_mb` are the
bytes that the program's kernels move (`hlo_text.traffic`); its loop counts once. `weights_mb` are
those of the weights as the device has them, `table_mb` those of embedding tables, of which a step
reads rows, and `caches_mb` those of all slots at their longest, in the dtype of the device's
engine. `ratio` is `step_mb` to what a step has to read: weights and caches, without tables.
`copies` are whole caches that the loop copies. For a GPU there are also `kernels` and their
`kinds`, `captured` of `launches` are in one of the `graphs` (CUDA graphs), and `loops` says how it
runs loops (JAXDELEGATE_GPU_LOOPS).

With --prompt it is the first program that prefills prompts of that length in all slots: `programs`
says how many runs that takes, and `prompts` how many slots a step prefills; `caches_mb` are those
of these slots. A program runs up to `steps` steps in a loop.
"""

import dataclasses
import itertools
import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import absent_device
import hlo_text
import jax
import numpy as np
from absl import app, flags
from harness import append

from jaxdelegate.bundles.bundle import open_bundle
from jaxdelegate.lm.language_model import LanguageModel, cache_dtype
from jaxdelegate.lm.program_spec import ProgramSpec, ProgramSpecs, cache_arrays
from jaxdelegate.lm.sampling_params import Variant
from jaxdelegate.options import DelegateOptions, gpu_loops
from jaxdelegate.program import Program

FLAGS = flags.FLAGS
flags.DEFINE_list("device", ["gpu", "tpu"], "What to compile for.")
flags.DEFINE_list("slots", ["1", "16"], "Sequences at once.")
flags.DEFINE_string("compute_dtype", "float16", "As JaxDelegate's option.")
flags.DEFINE_string("kv_cache_dtype", "auto", "As lm.Engine's option.")
flags.DEFINE_integer("prompt", 0, "Tokens of prompts, which are read; 0: decode steps.", 0)
flags.DEFINE_string("hlo", None, "A folder for the optimized programs' texts.")
flags.DEFINE_string("out", None, "A file to append JSON lines to.")


def opened(path: str, device: jax.Device, options: DelegateOptions) -> LanguageModel:
    """The model of a bundle, with caches as the device's engine carries them."""
    bundle = open_bundle(path)
    others = {part: m for part, m in bundle.models.items() if part != "prefill_decode"}
    part = bundle.models["prefill_decode"]
    model = LanguageModel(part, path, others, {"platform": "cpu"}, None, ":nocache")
    compiler = absent_device.AbsentCompiler(options, absent_device.Described(device))
    dtype = cache_dtype(compiler, FLAGS.kv_cache_dtype)
    model.graph = dataclasses.replace(model.graph, cache_dtype=dtype)
    return model


def spec_of(model: LanguageModel, platform: str, slots: int) -> tuple[ProgramSpec, dict[str, Any]]:
    """The program, with the longest caches, and what its line says of it."""
    graph = model.graph
    if not FLAGS.prompt:
        return ProgramSpec("decode", graph.decode.key, slots, graph.capacity, (0,), Variant()), {}
    specs = ProgramSpecs(graph, slots, (0,), platform)
    plan = specs.plan(FLAGS.prompt)
    spec = specs.prefill(plan[0], graph.capacity, specs.prompts(plan[0]))
    found = {"prompt": FLAGS.prompt, "step": plan[0], "programs": programs(specs, plan, slots)}
    return spec, {**found, "prompts": spec.prompts, "steps": spec.steps}


def programs(specs: ProgramSpecs, plan: Sequence[int], slots: int) -> int:
    """How many programs run these prefill steps in each slot."""
    found = 0
    for length, same in itertools.groupby(plan):
        prompts = specs.prompts(length)
        steps = len([*same]) * math.ceil(slots / prompts)
        found += math.ceil(steps / specs.steps(length, prompts))
    return found


def launched(text: str, thunks: str) -> dict[str, Any]:
    found = hlo_text.kernels(text)
    kinds = hlo_text.counts(found)
    own = {"kernels": len(found), "kinds": kinds, "loops": gpu_loops()}
    return {**own, **hlo_text.captured(thunks)}


def measured(model: LanguageModel, program: Program, spec: ProgramSpec) -> dict[str, Any]:
    executable: Any = program.executable
    shapes = cache_arrays(model.graph, spec.prompts if FLAGS.prompt else spec.slots, spec.length)
    own = sum(np.prod(shape) * dtype.itemsize for shape, dtype in shapes)
    weights = absent_device.weight_bytes(program)
    tables = _table_bytes(model, spec.step)
    text = executable.as_text()
    whole = {",".join(map(str, shape)) for shape, _ in shapes}
    return {
        "step_mb": hlo_text.traffic(text) / 1e6,
        "weights_mb": weights / 1e6,
        "table_mb": tables / 1e6,
        "caches_mb": own / 1e6,
        "ratio": hlo_text.traffic(text) / (weights - tables + own),
        "copies": sum(len(re.findall(rf"= \w+\[{shape}\][^=]* copy\(", text)) for shape in whole),
        "mb": absent_device.megabytes(executable),
    }


def _table_bytes(model: LanguageModel, step: str) -> int:
    """Bytes of the constants that lookups read, in a step and embedders."""
    found = 0
    for part, key in model.graph.keys(step).items():
        graph = model._models[part]
        signature = next(s for s in graph.signatures if s.key == key)
        subgraph = graph.subgraphs[signature.subgraph]
        for operator in subgraph.operators:
            place = {"EMBEDDING_LOOKUP": 1, "GATHER": 0}.get(operator.name)
            stored = None if place is None else subgraph.tensors[operator.inputs[place]].stored
            found += 0 if stored is None else stored.nbytes
    return found


def main(argv: list[str]) -> None:
    with tempfile.TemporaryDirectory() as dumps:
        for name in FLAGS.device:
            target = Path(__file__).with_name("h100.txtpb")
            device = (
                absent_device.gpu(target, Path(dumps)) if name == "gpu" else absent_device.tpu()
            )
            options = DelegateOptions(compute_dtype=FLAGS.compute_dtype)
            for path in argv[1:]:
                model = opened(path, device, options)
                for slots in map(int, FLAGS.slots):
                    head = {"bench": "compile_language_models", "bundle": Path(path).name}
                    spec, said = spec_of(model, name, slots)
                    head |= {"slots": slots, "compute_dtype": FLAGS.compute_dtype, **said}
                    head["kv_cache_dtype"] = FLAGS.kv_cache_dtype
                    there = f"{device.device_kind}, which was not there"
                    program = absent_device.program_of(model, spec, device, options)
                    if FLAGS.hlo:
                        Path(FLAGS.hlo).mkdir(parents=True, exist_ok=True)
                        text = Path(FLAGS.hlo) / f"{Path(path).stem}_{name}_{slots}.txt"
                        text.write_text(program.executable.as_text(), encoding="utf-8")
                    found = measured(model, program, spec)
                    if name == "gpu":
                        thunks = absent_device.taken_thunks(Path(dumps))
                        found |= launched(program.executable.as_text(), thunks)
                    append({**head, "compiled_for": there, **found}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
