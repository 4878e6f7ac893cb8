"""litert-tunner in its own Python, for bench/fine_tuning.py: see processes.serve.

It follows litert-tunner's README and notebook: `load_model`, `prepare_for_finetuning`, Keras'
`compile(jit_compile=True)` and `fit`, `save_model`. Its models take and return the integers of
quantized inputs and outputs as float32. Arrays are exchanged as .npz files: "x0", "x1"... are
inputs and "y0", "y1"... outputs, in the order of the .tflite file.
"""

from typing import Any

import keras
import litert_tunner
import numpy as np
from litert_tunner.distillation import prepare_for_finetuning
from processes import serve, timed

_Arrays = list[np.ndarray]


class Student:
    """The model that is trained, and what it is trained on."""

    def __init__(self) -> None:
        self.model: Any = None
        self.x: _Arrays = []
        self.y: _Arrays = []
        self.batch = 1
        self.start: dict[str, np.ndarray] = {}

    def versions(self) -> dict[str, str]:
        return {
            "litert_tunner": litert_tunner.__version__,
            "keras": keras.__version__,
            "backend": keras.backend.backend(),
        }

    def load(self, path: str, data: str, batch: int) -> None:
        """Load a model and its examples, in batches; 0: all at once."""
        keras.utils.set_random_seed(0)
        self.model = litert_tunner.load_model(path)
        self.x, self.y, self.batch = _arrays(data, "x"), _arrays(data, "y"), batch

    def prepare(self, rate: float, pattern: str, steps_per_execution: int) -> int:
        """Choose the variables to train, and compile; how many numbers they have."""
        prepare_for_finetuning(self.model, pattern)
        self.model.compile(
            optimizer=keras.optimizers.Adam(rate),
            loss=_one_or_all(["mse"] * len(self.model.outputs)),
            jit_compile=True,
            steps_per_execution=steps_per_execution,
        )
        self.start = {v.path: np.array(v) for v in self.model.trainable_variables}
        return sum(a.size for a in self.start.values())

    def epoch(self) -> tuple[float, float]:
        """All examples once: wall seconds, and the mean loss."""
        x, y = _one_or_all(self.x), _one_or_all(self.y)
        if not self.batch:
            return timed(lambda: float(np.sum(self.model.train_on_batch(x, y))))
        options: dict[str, Any] = {"batch_size": self.batch, "shuffle": False, "verbose": 0}
        seconds, history = timed(lambda: self.model.fit(x, y, epochs=1, **options))
        return seconds, float(history.history["loss"][0])

    def moved(self) -> int:
        """How many of the trained variables changed and are finite."""
        now = {v.path: np.array(v) for v in self.model.trainable_variables}
        return sum(
            bool(np.isfinite(a).all()) and not np.array_equal(a, self.start[n])
            for n, a in now.items()
        )

    def predict(self, data: str, out: str) -> None:
        x = _one_or_all(_arrays(data, "x"))
        found = self.model.predict_on_batch(x)
        found = found if isinstance(found, list | tuple) else [found]
        np.savez(out, **{f"y{i}": np.asarray(y) for i, y in enumerate(found)})

    def save(self, path: str) -> None:
        litert_tunner.save_model(self.model, path)


def _arrays(path: str, kind: str) -> _Arrays:
    with np.load(path) as file:
        names = [f"{kind}{i}" for i in range(len(file.files))]
        return [file[n].astype(np.float32) for n in names if n in file.files]


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


if __name__ == "__main__":
    student = Student()
    names = ("versions", "load", "prepare", "epoch", "moved", "predict", "save")
    serve({name: getattr(student, name) for name in names})
