"""Compares the Flex operators of the tests with TensorFlow 2.17, the last one whose wheel has Flex.

python bench/flex_operators.py write FOLDER        # with jaxdelegate: the cases as models
python bench/flex_operators.py run FOLDER          # with tensorflow-cpu==2.17.*: its results
python bench/flex_operators.py compare FOLDER      # with jaxdelegate: the largest differences
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]


def _cases() -> Iterator[tuple[str, Any]]:
    """Each case of tests/op_lowering/flex, and a name for its files; lists are no inputs."""
    from tests.support.case_tables import cases_in  # noqa: PLC0415 (not where TensorFlow is)

    tables = ("CASES", "LOWERED", "RUN_TIME")
    for name, cases in sorted(cases_in(ROOT / "tests/op_lowering/flex", tables).items()):
        if "TensorList" not in name:
            yield from ((f"{name}.{i}", case) for i, case in enumerate(cases))


def write(folder: Path) -> None:
    """One model and its inputs for each case."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in _cases():
        (folder / f"{name}.tflite").write_bytes(case.model())
        np.savez(folder / f"{name}.inputs.npz", *map(_stored, case.feeds()))


def _stored(array: np.ndarray) -> np.ndarray:
    """Strings end with a byte of their own: numpy drops zeros at the end."""
    if not array.dtype.hasobject:
        return array
    return np.array([text + b"." for text in array.reshape(-1)], "S").reshape(array.shape)


def _loaded(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "S":
        return array
    texts = np.array([*(text[:-1] for text in array.reshape(-1).tolist()), None], object)
    return texts[:-1].reshape(array.shape)


def run(folder: Path) -> None:
    """TensorFlow's results of each model, or its error."""
    import tensorflow as tf  # noqa: PLC0415 (only here)

    for path in sorted(folder.glob("*.tflite")):
        given = np.load(path.with_suffix(".inputs.npz"))
        try:
            interpreter = tf.lite.Interpreter(str(path))
            interpreter.allocate_tensors()
            for details, name in zip(interpreter.get_input_details(), given.files, strict=True):
                interpreter.set_tensor(details["index"], _loaded(given[name]))
            interpreter.invoke()
            results = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
        except (RuntimeError, ValueError) as error:
            path.with_suffix(".error").write_text(str(error))
            continue
        np.savez(path.with_suffix(".results.npz"), *map(_stored, results))


def compare(folder: Path) -> None:
    """A line for each operator: cases, and the largest differences of the rule and the kernel."""
    from jaxdelegate.op_lowering.registry import RULES  # noqa: PLC0415 (not where TensorFlow is)

    rows: dict[str, dict[str, Any]] = {}
    for name, case in _cases():
        row = rows.setdefault(case.name, {"cases": 0, "reference": 0.0})
        path = folder / f"{name}.results.npz"
        if not path.exists():
            row.setdefault("errors", []).append(f"{case}: {_error(folder, name)}")
            continue
        wanted = [_loaded(array) for array in np.load(path).values()]
        row["cases"] += 1
        ours = {"reference": case.run_reference()}
        if not case.reason(RULES[case.name]):
            ours["lowering"] = case.run_lowered(RULES[case.name])
        for kind, found in ours.items():
            row[kind] = max(row.get(kind, 0.0), *map(_difference, found, wanted))
    for name, row in rows.items():
        print(json.dumps({"operator": name, **row}))


def _error(folder: Path, name: str) -> str:
    path = folder / f"{name}.error"
    return path.read_text()[:200] if path.exists() else "no result"


def _difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest, of large values relative to them; infinite for another shape or another NaN."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if wanted.dtype.hasobject:
        return 0.0 if found.tolist() == wanted.tolist() else float("inf")
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    x, y = found.astype(wide), wanted.astype(wide)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(all="ignore"):
        apart = np.abs(x - y) / np.maximum(np.abs(y), 1)
    apart = np.where(same, 0, np.where(np.isnan(apart), np.inf, apart))
    return float(apart.max(initial=0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("write", "run", "compare"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    {"write": write, "run": run, "compare": compare}[arguments.step](arguments.folder)
