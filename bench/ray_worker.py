"""The step that both sides of bench/ray_data.py run on the same batches, and the plain process.

    python bench/ray_worker.py MODEL PROGRAMS BATCH OUT FILE...

reads Parquet files with pyarrow, one after the other, and writes what it computed to OUT (.npz).
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from jaxdelegate.ray import Predictor

SIDE = 224
Columns = dict[str, np.ndarray]


class Step:
    """Encoded images to columns: scores, the time, and the process's CPU time."""

    def __init__(self, model: str, programs: str, batch: int, dies: tuple[str, int] | None = None):
        self._predictor = Predictor(
            model,
            {_only_input(model): "image"},
            batch_sizes=[batch],
            options={"serialization_dir": programs},
        )
        self._dies = dies

    def __call__(self, columns: Columns) -> Columns:
        if self._dies is not None and self._dies[1] in columns["id"]:
            self._die_once(Path(self._dies[0]))
        images = [np.frombuffer(x, np.uint8).reshape(SIDE, SIDE, 3) for x in columns["image"]]
        pixels = (np.stack(images).astype(np.float32) - np.float32(127.5)) / np.float32(127.5)
        found = self._predictor({"id": columns["id"], "image": pixels})
        (scores,) = (v for k, v in found.items() if k not in ("id", "image"))
        count = len(scores)
        told = {
            "process": os.getpid(),
            "ended": time.time(),
            "processor_s": time.process_time(),
        }
        return {
            "id": found["id"],
            "scores": scores.reshape(count, -1),
            **{name: np.full(count, value) for name, value in told.items()},
        }

    @staticmethod
    def _die_once(died: Path) -> None:
        if not died.exists():
            died.touch()
            os._exit(1)


def _only_input(model: str) -> str:
    from jaxdelegate.interpreter import Interpreter  # noqa: PLC0415

    interpreter = Interpreter(model)
    signatures = list(interpreter.get_signature_list().values())
    if signatures:
        return signatures[0]["inputs"][0]
    return str(interpreter.get_input_details()[0]["name"])


def batches(files: list[str], size: int) -> Iterator[Columns]:
    """The rows of Parquet files, `size` at a time within each."""
    for file in files:
        table = parquet.read_table(file)
        for first in range(0, table.num_rows, size):
            part = table.slice(first, size)
            yield {
                "id": part.column("id").to_numpy(),
                "image": np.array([x.as_py() for x in part.column("image")], object),
            }


def main(model: str, programs: str, size: str, out: str, *files: str) -> None:
    step: Any = Step(model, programs, int(size))
    parts = [step(columns) for columns in batches([*files], int(size))]
    np.savez(out, **{name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


if __name__ == "__main__":
    main(*sys.argv[1:])
