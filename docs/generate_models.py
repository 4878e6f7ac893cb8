"""Write docs/models.md: real models, how much of each is delegated, how far from LiteRT.

    python docs/generate_models.py FOLDER

FOLDER holds .tflite files and manifest.json: a list of {"file", "kind", "litert_runs"}. Errors are
the largest of any output element, over the largest element; for quantized outputs in LSB.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd
from jaxdelegate.testing.running import random_inputs, run_once

HEAD = """# Float models

For anyone who wants to know how well jaxdelegate runs real float models: how many operators are delegated, and how large the errors
are. To check your own model, run `jaxdelegate inference_diff --graph=model.tflite --reference=litert_ref`.

| column | meaning |
|---|---|
| kind | the dtype of the arithmetic; fp16w: float16 weights |
| operators, delegated, partitions | number of operators in the main subgraph, of those that JaxDelegate runs, and of its partitions |
| reference error | error of jaxdelegate's numpy reference |
| delegated error | error of the interpreter with JaxDelegate |

An error is the largest difference of an output element from LiteRT, relative to the largest element. LiteRT uses its reference
kernels or, for operators without one, its other kernels. Inputs are uniform random values with a fixed seed. The models are public; `python docs/generate_models.py FOLDER` writes this page.

| model | kind | operators | delegated | partitions | reference error | delegated error |
|---|---|--:|--:|--:|--:|--:|
"""  # noqa: E501 (the rows of a table)


def litert(path: Path, arrays: list[np.ndarray]) -> list[np.ndarray]:
    kinds = (
        OpResolverType.BUILTIN_REF,
        OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        OpResolverType.AUTO,
    )
    for kind in kinds:
        try:
            return run_once(StockInterpreter(str(path), experimental_op_resolver_type=kind), arrays)
        except (RuntimeError, ValueError):
            continue
    raise RuntimeError(f"LiteRT does not run {path.name}")


def error(got: list[np.ndarray], want: list[np.ndarray]) -> str:
    worst, unit = 0.0, ""
    for g, w in zip(got, want, strict=True):
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"{g.dtype}{list(g.shape)} for {w.dtype}{list(w.shape)}"
        if not w.size:
            continue
        if w.dtype.kind == "f":
            finite = np.isfinite(w)
            scale = max(float(np.abs(w[finite]).max(initial=0)), 1e-2)
            worst = max(worst, float(np.abs(np.where(finite, g - w, 0)).max() / scale))
        elif w.dtype.kind in "iu" and w.dtype.itemsize <= 2:
            worst, unit = max(worst, float(np.abs(g.astype(int) - w.astype(int)).max())), " LSB"
        else:
            worst, unit = max(worst, float(np.sum(g != w))), " differ"
    return f"{worst:.2g}{unit}" if worst else "0"


def row(root: Path, entry: dict[str, Any]) -> str:
    path = root / entry["file"]
    try:
        delegate = jd.JaxDelegate()
        delegated = jd.Interpreter(path, experimental_delegates=[delegate])
        report = delegate.report()
        arrays = random_inputs(delegated.get_input_details())
        want = litert(path, arrays)
        counts = f"{len(report.nodes)} | {len(report.delegated)} | {report.n_partitions}"
    except (jd.JaxDelegateError, RuntimeError, ValueError) as problem:
        return f"| {entry['file']} | {entry['kind']} | | | | {one_line(problem)} | |"
    errors = [attempt(algorithm, arrays, want) for algorithm in (jd.Interpreter(path), delegated)]
    return f"| {entry['file']} | {entry['kind']} | {counts} | {' | '.join(errors)} |"


def attempt(interpreter: jd.Interpreter, arrays: list[np.ndarray], want: list[np.ndarray]) -> str:
    try:
        return error(run_once(interpreter, arrays), want)
    except jd.JaxDelegateError as problem:
        return one_line(problem)


def one_line(problem: Exception) -> str:
    return str(problem).splitlines()[0].replace("|", "/")[:90]


def main() -> None:
    logging.getLogger("jaxdelegate").setLevel(logging.ERROR)
    root = Path(sys.argv[1])
    manifest = json.loads((root / "manifest.json").read_text())
    floats = ("float", "fp16w", "integer", "string", "other")
    entries = sorted((m for m in manifest if m["kind"] in floats), key=lambda m: m["file"])
    rows = [row(root, entry) for entry in entries if entry["litert_runs"]]
    (Path(__file__).parent / "models.md").write_text(HEAD + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
