"""Runs models whose inputs and results are in .csv files next to them, and counts other results.

    git clone --depth=1 https://github.com/tensorflow/tflite-micro
    python bench/goldens.py tflite-micro/tensorflow/lite/micro/integration_tests/seanet

For each `add0.tflite` it reads `add0_input<i>_<dtype>.csv` and `add0_golden_<dtype>.csv`, flat, and
runs the model in integers by a JaxDelegate, by our numpy kernels and by LiteRT. A line for each
folder has the models, and by way: the results that are equal to the last bit, the largest
difference, and the models that were refused.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter as Stock
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd


def _delegated(path: str) -> Any:
    delegate = jd.JaxDelegate(quant_mode="integer", min_gain=0, require_full_delegation=True)
    return jd.Interpreter(path, experimental_delegates=[delegate])


def _stock(path: str) -> Any:
    return Stock(path, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)


WAYS: dict[str, Callable[[str], Any]] = {
    "delegate": _delegated,
    "numpy": jd.Interpreter,
    "litert": _stock,
}


def _read(path: Path) -> np.ndarray:
    return np.loadtxt(path, delimiter=",", ndmin=1).astype(path.stem.rpartition("_")[2])


def _inputs(model: Path) -> Iterator[np.ndarray]:
    found = model.parent.glob(f"{model.stem}_input*.csv")
    number = re.compile(r"_input(\d+)_")
    yield from map(_read, sorted(found, key=lambda p: int(number.search(p.name)[1])))  # type: ignore[index]


def _run(interpreter: Any, inputs: list[np.ndarray]) -> np.ndarray:
    interpreter.allocate_tensors()
    for detail, x in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], x.reshape(detail["shape"]))
    interpreter.invoke()
    return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


def _differences(model: Path, row: Counter[str]) -> None:
    (golden,) = map(_read, model.parent.glob(f"{model.stem}_golden_*.csv"))
    inputs = list(_inputs(model))
    for way, opened in WAYS.items():
        try:
            found = _run(opened(str(model)), inputs)
        except (RuntimeError, ValueError) as error:
            row[f"{way}_refused"] += 1
            print(f"{model.stem}, {way}: {error}")
            continue
        far = int(np.abs(found.reshape(-1).astype(np.int64) - golden.astype(np.int64)).max())
        row[f"{way}_equal"] += far == 0
        row[f"{way}_largest"] = max(row[f"{way}_largest"], far)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    models = sorted(parser.parse_args().folder.rglob("*.tflite"))
    for folder in sorted({model.parent for model in models}):
        here = [model for model in models if model.parent == folder]
        row = Counter({"models": len(here)})
        for model in here:
            _differences(model, row)
        print(json.dumps({"folder": folder.name, **row}), flush=True)


if __name__ == "__main__":
    main()
