"""Anomaly scores of MLCommons Tiny's ToyCar networks, next to those that its authors published.

    python bench/toycar.py tiny/benchmark   # in a clone of github.com/mlcommons/tiny

The repository has the spectrogram of one recording and the scores of four networks for it: floats,
dynamic range, and int8 twice. A score is the mean square error of the network's reconstruction.
All of them take and return floats.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import jaxdelegate as jd

RECORDING = "normal_id_01_00000000"
MELS, FRAMES = 128, 5
KINDS = ("", "_quant", "_quant_fullint", "_quant_fullint_micro")


def windows(path: Path) -> np.ndarray:
    """float32 [196, MELS * FRAMES]: each five neighboring frames."""
    frames = np.fromfile(path, np.float32).reshape(-1, MELS)
    count = len(frames) - FRAMES + 1
    return np.concatenate([frames[t : t + count] for t in range(FRAMES)], axis=1)


def score(interpreter: Any, x: np.ndarray) -> float:
    (entry,), (leaving,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.allocate_tensors()
    errors = []
    for row in x:
        interpreter.set_tensor(entry["index"], row[None])
        interpreter.invoke()
        y = interpreter.get_tensor(leaving["index"])
        errors.append(np.mean(np.square(row - y[0].astype(np.float64))))
    return float(np.mean(errors))


def published(path: Path) -> float:
    with open(path, encoding="ascii") as file:
        return float(dict(csv.reader(file))[f"{RECORDING}.wav"])


def main() -> None:
    root = Path(sys.argv[1])
    trained = root / "training/anomaly_detection/trained_models/ToyCar/baseline_tf23"
    spectrograms = root / "reference_submissions/anomaly_detection/datasets/dcase01"
    x = windows(spectrograms / f"{RECORDING}_hist_librosa.bin")
    for kind in KINDS:
        model = trained / f"model/model_ToyCar{kind}.tflite"
        scores = trained / f"result/tflite{kind}_anomaly_score_ToyCar_id_01.csv"
        interpreters = {
            "numpy": jd.Interpreter(model),
            "delegated": jd.Interpreter(model, experimental_delegates=[jd.JaxDelegate()]),
            "LiteRT": Interpreter(str(model)),
            "LiteRT, BUILTIN_REF": Interpreter(
                str(model), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
            ),
        }
        found = {name: score(one, x) for name, one in interpreters.items()}
        texts = [f"{name} {s:.6f}" for name, s in {"published": published(scores), **found}.items()]
        print(f"{model.stem}: {', '.join(texts)}")


if __name__ == "__main__":
    main()
