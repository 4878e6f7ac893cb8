"""Which default does each switch of docs/gpu.md deserve on this machine's GPU?

    python bench/gpu_switches.py [--platform=gpu] [--rounds=30] [--switches=loop_graph,...]
        [--bundle=model.litertlm] [--out=accept_gpu.jsonl]

Every switch is measured in a process of its own, because a loop in a CUDA graph may end it: off and
on in interleaved rounds, with equal results. The loops generate 64 tokens for one prompt, by a
small model with random weights or `--bundle`; the copies are those of MobileNet v1 between host
arrays. A line has the milliseconds of both, `ratio` (on / off, round by round), whether the results
are `equal`, and what is `recommended`: on, if results are equal and nine of ten rounds are faster.
bench/accept_gpu.py runs this script. It has not run on a GPU yet.
"""

import contextlib
import dataclasses
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from harness import append, gpu_facts, interleaved, last_line, ratios, spread

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.options import EARLY_COPIES, GPU_LOOPS, PINNED_INPUTS, SPLIT_PRODUCTS

FLAGS = flags.FLAGS
_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Switch:
    """An environment variable, its two values, and what is measured: "loops" or "copies".

    `rounds`: results may differ by rounding.
    """

    variable: str
    off: str
    on: str
    measured: str
    rounds: bool = False


SWITCHES = {
    "loop_graph": Switch(GPU_LOOPS, "host", "graph", "loops"),
    "loop_unrolled": Switch(GPU_LOOPS, "host", "unrolled", "loops"),
    "early_copies": Switch(EARLY_COPIES, "0", "1", "copies"),
    "pinned_inputs": Switch(PINNED_INPUTS, "0", "1", "copies"),
    "split_products": Switch(SPLIT_PRODUCTS, "0", "1", "copies", rounds=True),
}


@contextlib.contextmanager
def value_of(variable: str, value: str) -> Iterator[None]:
    """Set an environment variable for a while."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before


def inference(model: bytes, platform: str) -> Callable[[], np.ndarray]:
    """From an array of the host to one, as the switches say now."""
    delegate = jd.JaxDelegate(platform=platform)  # type: ignore[arg-type]
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    array = np.random.default_rng(0).standard_normal(x["shape"]).astype(x["dtype"])

    def once() -> np.ndarray:
        interpreter.set_tensor(x["index"], array)
        interpreter.invoke()
        return interpreter.get_tensor(y["index"])

    once()
    return once


def generation(bundle: Path, platform: str) -> Callable[[], list[int]]:
    """The tokens of a greedy answer, with programs as the switch says now."""
    lm: Any = importlib.import_module("jaxdelegate.lm")
    engine = lm.Engine(bundle, options={"platform": platform}, cache_dir=":nocache")

    def once() -> list[int]:
        (found,) = engine.generate(["Hello"], max_output_tokens=_TOKENS)
        tokens: list[int] = found.token_ids
        return tokens

    once()  # compiles
    return once


def measured(switch: Switch, make: Callable[[], Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """The record of a switch, whose two values `make` sees one after the other."""
    calls = {}
    for value in (switch.off, switch.on):
        with value_of(switch.variable, value):
            calls[value] = make()
    off, on = (np.asarray(call()) for call in calls.values())
    times = interleaved(calls, rounds=rounds)
    ratio = ratios(times, switch.off)[switch.on]
    is_equal = bool(np.allclose(off, on, rtol=0, atol=1e-5 if switch.rounds else 0))
    return {
        "ms": {value: spread([1e3 * t for t in own]) for value, own in times.items()},
        "ratio": ratio,
        "equal": is_equal,
        "recommended": recommended(switch, ratio, is_equal=is_equal),
    }


def recommended(switch: Switch, ratio: Mapping[str, float], *, is_equal: bool) -> str:
    """The value that should be the default, by the time with the switch over that without."""
    return switch.on if is_equal and ratio["p90"] < 1 else switch.off


def run_one(name: str) -> None:
    """Measure a switch here, and append its record."""
    switch, platform = SWITCHES[name], FLAGS.platform
    with tempfile.TemporaryDirectory() as folder:
        if switch.measured == "copies":
            model = mobilenet_v1()
            found = measured(switch, lambda: inference(model, platform), FLAGS.rounds)
        else:
            bundle = Path(FLAGS.bundle or Path(folder) / "random.litertlm")
            if not FLAGS.bundle:
                models = importlib.import_module("tests.support.language_models")
                bundle.write_bytes(models.language_bundle())
            found = measured(switch, lambda: generation(bundle, platform), FLAGS.rounds)
    append({**head(name), **found, "gpu": gpu_facts()}, FLAGS.out)


def head(name: str) -> dict[str, Any]:
    """What identifies a record."""
    switch = SWITCHES[name]
    return {
        "bench": "gpu_switches",
        "switch": name,
        "variable": switch.variable,
        "platform": FLAGS.platform,
    }


def run_apart(name: str) -> None:
    """Measure a switch in another process; where that fails, the record says so: stay off."""
    command = [sys.executable, __file__, *sys.argv[1:], f"--one={name}"]
    try:
        ended = subprocess.run(
            command, stderr=subprocess.PIPE, timeout=FLAGS.timeout, text=True, check=False
        )
        status, said = ended.returncode, last_line(RuntimeError(ended.stderr))
    except subprocess.TimeoutExpired as error:
        status, said = -1, last_line(error)
    if status:
        refused = {"refused": f"exit status {status}: {said}", "recommended": SWITCHES[name].off}
        append({**head(name), **refused}, FLAGS.out)


def main(_argv: list[str]) -> None:
    if FLAGS.one:
        run_one(FLAGS.one)
        return
    if unknown := {*FLAGS.switches} - {*SWITCHES}:
        raise app.UsageError(f"--switches: no {', '.join(unknown)}; there are {[*SWITCHES]}")
    for name in FLAGS.switches:
        run_apart(name)


if __name__ == "__main__":
    flags.DEFINE_string("platform", "gpu", "gpu; cpu only to try the script.")
    flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
    flags.DEFINE_list("switches", [*SWITCHES], "Which.")
    flags.DEFINE_string("bundle", None, "A .litertlm for the loops; unset: random weights.")
    flags.DEFINE_float("timeout", 600.0, "Seconds that one switch may take.", 1.0)
    flags.DEFINE_string("out", None, "A file to append JSON lines to.")
    flags.DEFINE_enum("one", None, [*SWITCHES], "Measure this one in this process.")
    app.run(main)
