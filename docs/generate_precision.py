"""Write the table of docs/reduced_precision.md: float models in reduced precision and float32.

    python docs/generate_precision.py FOLDER [MORE.tflite ...]

FOLDER holds .tflite files and manifest.json: a list of {"file", "kind", "litert_runs"}. The table
is between two marks in docs/reduced_precision.md; the text around it stays.
"""

import dataclasses
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tqdm import tqdm

import jaxdelegate as jd
from jaxdelegate.compile.precision_policy import cpu_policy, emulated_policy
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.testing.running import random_inputs, run_once

PAGE = Path(__file__).parent / "reduced_precision.md"
BEGIN, END = "<!-- table: docs/generate_precision.py -->", "<!-- end of table -->"
HEAD = """
| model | CPU: bfloat16 operands | GPU, emulated: float16 | GPU, emulated: bfloat16 |
|---|--:|--:|--:|
"""
POLICIES = (
    cpu_policy("bfloat16", frozenset(["avx512_bf16"])),
    emulated_policy("float16"),
    emulated_policy("bfloat16"),
)


def outputs(path: Path, policy: PrecisionPolicy, arrays: list[np.ndarray]) -> list[np.ndarray]:
    delegate = jd.JaxDelegate(platform="cpu")
    own = dataclasses.replace(delegate.compiler.context, precision=policy)
    delegate.compiler.context = own.on_gpu(policy) if policy.rounds_exactly else own
    return run_once(jd.Interpreter(path, experimental_delegates=[delegate]), arrays)


def cell(got: list[np.ndarray], want: list[np.ndarray]) -> str:
    """Largest and mean error of the worst output, relative to its largest value; top-1; NaN."""
    worst = mean = 0.0
    agree = total = lost = 0
    for g, w in zip(got, want, strict=True):
        if not w.size:
            continue
        if w.dtype.kind != "f":
            agree, total = agree + int(np.sum(g == w)), total + w.size
            continue
        finite = np.isfinite(w)
        lost += int(np.sum(finite & ~np.isfinite(g)))
        scale = float(np.abs(w[finite]).max(initial=0)) or 1.0
        errors = np.abs(np.where(finite & np.isfinite(g), g - w, 0)) / scale
        worst, mean = max(worst, float(errors.max())), max(mean, float(errors.mean()))
        if w.ndim in (2, 4) and w.shape[-1] > 1:  # [N, classes], or classes of pixels
            same = np.argmax(g, -1) == np.argmax(w, -1)
            agree, total = agree + int(same.sum()), total + same.size
    top = f", {100 * agree / total:.4g} %" if total else ""
    return f"{worst:.1e} / {mean:.1e}{top}" + (f", {lost} lost" if lost else "")


def row(path: Path, name: str) -> str:
    arrays = random_inputs(jd.Interpreter(path).get_input_details())
    want = outputs(path, PrecisionPolicy(), arrays)
    cells = [attempt(lambda p=policy: cell(outputs(path, p, arrays), want)) for policy in POLICIES]
    return f"| {name} | {' | '.join(cells)} |"


def attempt(make: Callable[[], str]) -> str:
    try:
        return make()
    except (jd.JaxDelegateError, RuntimeError, ValueError) as problem:
        return str(problem).splitlines()[0].replace("|", "/")[:90]


def main() -> None:
    logging.getLogger("jaxdelegate").setLevel(logging.ERROR)
    root, *more = map(Path, sys.argv[1:])
    manifest = json.loads((root / "manifest.json").read_text())
    kinds = ("float", "fp16w")
    files = sorted(m["file"] for m in manifest if m["kind"] in kinds and m["litert_runs"])
    models = [(root / file, file) for file in files] + [(path, path.name) for path in more]
    rows = [attempt(lambda m=model: row(*m)) for model in tqdm(models, disable=None)]
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}{HEAD}" + "\n".join(rows) + f"\n\n{END}{after}")


if __name__ == "__main__":
    main()
