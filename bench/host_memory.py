"""Peak anonymous host memory from the imports through the first invoke.

    python bench/host_memory.py --graph=resnet50.tflite [--out=bench/results/host_memory.jsonl]

Megabytes of RssAnon, sampled every 2 ms in a thread; the budget is twice the file and 200 MB. With
an accelerator the weights' device copy is not in it; on a CPU it is.
"""

import threading
from pathlib import Path

import jax
import numpy as np
from absl import app, flags
from harness import append, rss_anon_mb

import jaxdelegate as jd

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "A .tflite.", required=True)
flags.DEFINE_string("out", None, "A file to append the JSON line to.")


class Peak(threading.Thread):
    """Samples RssAnon until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mb = rss_anon_mb()
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.002):
            self.mb = max(self.mb, rss_anon_mb())

    def stop(self) -> float:
        self._done.set()
        self.join()
        self.mb = max(self.mb, rss_anon_mb())
        return self.mb


def main(_argv: list[str]) -> None:
    interpreter_class, delegate_class = jd.Interpreter, jd.JaxDelegate  # imports done
    before = rss_anon_mb()
    peak = Peak()
    peak.start()
    delegate = delegate_class()
    interpreter = interpreter_class(FLAGS.graph, experimental_delegates=[delegate])
    planned = rss_anon_mb()
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], np.zeros(detail["shape"], detail["dtype"]))
    interpreter.invoke()
    file_mb = Path(FLAGS.graph).stat().st_size / 2**20
    append(
        {
            "bench": "host_memory",
            "graph": Path(FLAGS.graph).name,
            "device": str(jax.devices()[0]),
            "file_mb": file_mb,
            "before_mb": before,
            "planned_mb": planned - before,
            "grown_mb": peak.stop() - before,
            "budget_mb": 2 * file_mb + 200,
        },
        FLAGS.out,
    )


if __name__ == "__main__":
    app.run(main)
