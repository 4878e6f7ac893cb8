"""How the cost of an inference grows with the batch and with the size of its images.

    NPROC=1 taskset -c 0 python bench/scaling.py [--batches=1,2,4,8,16,32] [--sizes=96,...,448]
        [--rounds=15] [--platform=gpu] [--out=bench/results/scaling.jsonl]

Times the demo's MobileNet v1 in XNNPACK and in the delegate, with setting the input and getting the
output. Batches have images of 224 by 224, sizes are those of a single image. Each gets a line:
milliseconds, and microseconds per image and per thousand pixels, which are constant if the cost is
linear. A step would mean memory that every call maps again.
"""

from typing import Any

import jax
from absl import app, flags
from agreement import inputs, judge
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import AbsentError, append, interleaved, ratios, spread, threads

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.testing.running import run_once

FLAGS = flags.FLAGS
flags.DEFINE_list("batches", ["1", "2", "4", "8", "16", "32"], "Images at a time.")
flags.DEFINE_list("sizes", ["96", "128", "160", "224", "320", "448"], "Height and width.")
flags.DEFINE_float("width", 1.0, "The network's width multiplier.")
flags.DEFINE_integer("rounds", 15, "Timed rounds.", 3)
flags.DEFINE_float("seconds", 60.0, "No further round of one size after these.", 0.0)
flags.DEFINE_string("platform", None, "Of the delegate; unset: JAX's default.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

SIZE = 224


def measured(content: bytes, batch: int) -> dict[str, list[float]]:
    """Seconds of each round, after checking both engines.

    Raises:
        AbsentError: one of them is wrong.
    """
    delegate = jd.JaxDelegate(platform=FLAGS.platform)
    engines: dict[str, Any] = {
        "litert_xnnpack": StockInterpreter(model_content=content, num_threads=threads()),
        "jaxdelegate": jd.Interpreter(model_content=content, experimental_delegates=[delegate]),
    }
    (image,) = inputs(engines["litert_xnnpack"].get_input_details(), batch)
    rule = judge(content, [image], None)
    for name, engine in engines.items():
        if (why := rule.why_not(run_once(engine, [image]))) is not None:
            raise AbsentError(f"{name}: {why}")

    def call(engine: Any) -> None:
        engine.set_tensor(engine.get_input_details()[0]["index"], image)
        engine.invoke()
        engine.get_tensor(engine.get_output_details()[0]["index"])

    calls = {name: lambda engine=engine: call(engine) for name, engine in engines.items()}
    return interleaved(calls, rounds=FLAGS.rounds, settle=1, seconds=FLAGS.seconds)


def main(_argv: list[str]) -> None:
    cases = [(int(batch), SIZE) for batch in FLAGS.batches] + [(1, int(n)) for n in FLAGS.sizes]
    for batch, size in dict.fromkeys(cases):
        times = measured(mobilenet_v1(size=size, width=FLAGS.width), batch)
        thousands = batch * size * size / 1000
        append(
            {
                "bench": "scaling",
                "graph": f"mobilenet_v1_{FLAGS.width}",
                "batch": batch,
                "size": size,
                "threads": threads(),
                "device": str(jax.devices(FLAGS.platform)[0]),
                "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
                "us_by_thousand_pixels": {
                    name: spread([1e6 * t / thousands for t in own]) for name, own in times.items()
                },
                "ratio_to_litert": ratios(times, "litert_xnnpack"),
            },
            FLAGS.out,
        )


if __name__ == "__main__":
    app.run(main)
