"""Default algorithms against measured ones (`inference_preference="sustained_speed"`).

    NPROC=1 taskset -c 0 python bench/tuning.py --graph=a.tflite,b.tflite [--rounds=30]
        [--seconds=30] [--platform=gpu] [--timer=wall] [--out=bench/results/tuning.jsonl]

Outputs are compared before anything is timed. Milliseconds; ratios are taken round by round.
On a shared machine `--timer=cpu` with NPROC=1 counts this process's CPU time.
"""

import functools
import time
from pathlib import Path

from absl import app, flags
from harness import append, ratios, spread

import jaxdelegate as jd
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.testing.running import random_inputs, run_once
from jaxdelegate.tuning import measure as tuning
from jaxdelegate.tuning import selector

FLAGS = flags.FLAGS
flags.DEFINE_list("graph", None, "One or more .tflite files.", required=True)
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_float("seconds", selector.BUDGET_SECONDS, "Budget of measuring.", 0.0)
flags.DEFINE_string("platform", None, "Of the delegates; unset: JAX's default.")
flags.DEFINE_enum("timer", "wall", ["wall", "cpu"], "What is counted.")
flags.DEFINE_string("out", None, "A file to append JSON lines to.")


def main(_argv: list[str]) -> None:
    clock = time.process_time if FLAGS.timer == "cpu" else time.perf_counter
    for graph in FLAGS.graph:
        compare(Path(graph), clock)


def compare(graph: Path, clock: tuning.Clock) -> None:
    content = graph.read_bytes()
    default = jd.JaxDelegate(platform=FLAGS.platform)
    tuned = jd.JaxDelegate(platform=FLAGS.platform, inference_preference="sustained_speed")
    timer = functools.partial(tuning.interleaved, clock=clock)
    measure = functools.partial(tuning.tune, timer=timer)
    tuned.compiler.tuner = selector.Tuner(
        "sustained_speed", tuned.device, None, measure, FLAGS.seconds
    )
    engines = {
        name: jd.Interpreter(model_content=content, experimental_delegates=[delegate])
        for name, delegate in (("default", default), ("tuned", tuned))
    }
    seconds = {}
    for name, engine in engines.items():
        start = time.perf_counter()
        engine.allocate_tensors()
        seconds[name] = time.perf_counter() - start
    arrays = random_inputs(engines["default"].get_input_details())
    want, got = (run_once(engine, arrays) for engine in engines.values())
    assert_close(got, want, tolerance=NETWORK)
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(FLAGS.rounds):
        for name, engine in engines.items():
            start = clock()
            engine.invoke()
            times[name].append(clock() - start)
    report = tuned.tuner.report()
    print(report)
    append(
        {
            "bench": "tuning",
            "graph": graph.name,
            "device": str(tuned.device),
            "timer": FLAGS.timer,
            "compile_s": seconds,
            "measured": len(report.choices),
            "changed": {
                key: [choice.default, choice.algorithm, choice.gain]
                for key, choice in report.choices.items()
                if choice.algorithm != choice.default
            },
            "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
            "ratio_to_default": ratios(times, "default"),
        },
        FLAGS.out,
    )


if __name__ == "__main__":
    app.run(main)
