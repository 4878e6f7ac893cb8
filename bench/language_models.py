"""Tokens per second of a bundle: jaxdelegate.lm and, where it is installed, litert_lm.

    NPROC=1 taskset -c 0 python bench/language_models.py model.litertlm ... [--threads=1]
        [--prompt_tokens=192] [--answer_tokens=64] [--batch=8] [--rounds=7]
        [--platform=gpu --compute_dtype=float16] [--out=bench/results/language_models.jsonl]

Both engines read the same prompt and continue it greedily, one after the other in each round; first
their answers are compared: `equal_characters` of `characters`. A prompt is read into a new session,
so that no cache is used again. `batch` prompts at once are `Engine.generate` as a whole
(`batch_tokens_per_s`), and its parts apart: `batch_caches_s` until the caches are there,
`batch_prompt_tokens_per_s` of reading, and `batch_answer_tokens_per_s` of answers alone, which
`batch_ratio` compares with the rate of one answer. `same_prompt_s` is the time of as many whose
prompts end with a few words of their own, until they are read: `shared` if they may use what
caches have of each other, else `apart`. `first_batch_s` is the first run, which compiles
or loads programs; no other figure has it. `process` is one that reads the prompt and generates
eight tokens: its seconds, with programs that were stored before, and its largest resident memory.
On a GPU or a TPU jaxdelegate is measured alone.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import app, flags
from harness import append, ratios, spread, threads

FLAGS = flags.FLAGS
flags.DEFINE_integer("prompt_tokens", 192, "About how many tokens the prompt has.", 2)
flags.DEFINE_integer("answer_tokens", 64, "How many tokens are generated.", 1)
flags.DEFINE_integer("batch", 8, "Prompts at once.", 1)
flags.DEFINE_integer("rounds", 7, "Timed rounds.", 3)
flags.DEFINE_string("platform", "cpu", "Where jaxdelegate runs: cpu, gpu or tpu.")
flags.DEFINE_string("compute_dtype", "float32", "JaxDelegate's option.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")
flags.DEFINE_string("child", None, "For the script itself: the engine of a process.")

_TEXT = "the quick brown fox jumps over a lazy dog and runs into the wood where "


class Run:
    """Seconds of one prompt and answer."""

    def __init__(self, session: Any, prompt: str) -> None:
        start = time.perf_counter()
        session.run_prefill([prompt])
        # litert_lm may return before it has read the prompt; the first token waits for it.
        parts = self._parts(session)
        first = next(parts, "")
        self.prefill = time.perf_counter() - start
        self.text = first + "".join(parts)
        self.whole = time.perf_counter() - start
        session.close()

    @staticmethod
    def _parts(session: Any) -> Iterator[str]:
        for response in session.run_decode_async():
            yield response.texts[0]


def ours(path: str) -> tuple[Any, Callable[[int], Any]]:
    from jaxdelegate import lm  # noqa: PLC0415 (each engine in its own process, too)

    options = {"platform": FLAGS.platform, "compute_dtype": FLAGS.compute_dtype}
    engine = lm.Engine(path, max_batch=FLAGS.batch, options=options)
    sampler = lm.SamplerConfig(top_k=1)
    return engine, lambda n: engine.create_session(sampler_config=sampler, max_output_tokens=n)


def theirs(path: str) -> tuple[Any, Callable[[int], Any]]:
    import litert_lm  # noqa: PLC0415 (may be absent)

    litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
    engine = litert_lm.Engine(path, litert_lm.Backend.CPU(thread_count=threads()))
    sampler = litert_lm.SamplerConfig(top_k=1)
    return engine, lambda n: engine.create_session(sampler_config=sampler, max_output_tokens=n)


_ENGINES = {"jaxdelegate": ours, "litert_lm": theirs}


def prompt_of(engine: Any, tokens: int) -> str:
    words = (_TEXT * tokens).split(" ")
    count = 1
    while len(engine.tokenize(" ".join(words[: count + 1]))) < tokens:
        count += 1
    return " ".join(words[:count])


def in_child(path: str) -> None:
    engine, session = _ENGINES[FLAGS.child](path)
    Run(session(8), prompt_of(engine, FLAGS.prompt_tokens))
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))
    print(peak)
    engine.close()


def child(engine: str, path: str) -> dict[str, float]:
    command = [sys.executable, __file__, path, f"--child={engine}"]
    command += [f"--prompt_tokens={FLAGS.prompt_tokens}", f"--platform={FLAGS.platform}"]
    command += [f"--compute_dtype={FLAGS.compute_dtype}"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    whole = time.perf_counter() - start
    return {"seconds": whole, "peak_mb": float(done.stdout.split()[-1])}


def same_prompt(engine: Any, prompt: str) -> dict[str, dict[str, float]]:
    from jaxdelegate.lm.benchmark import batch_times  # noqa: PLC0415 (not in a child)

    begin, ends = engine.prompt_ids(prompt), [f" {n} and so on" for n in range(FLAGS.batch)]
    prompts = [[*begin, *engine.tokenize(end)] for end in ends]
    seconds: dict[str, list[float]] = {"shared": [], "apart": []}
    for number in range(1 + FLAGS.rounds):
        for name, own in seconds.items():
            times = batch_times(engine, prompts, 1, shares=name == "shared")
            if number:  # the first one compiles
                own.append(times.prompts_s)
    return {name: spread(own) for name, own in seconds.items()}


def measure(path: str) -> dict[str, Any]:
    from jaxdelegate.lm.benchmark import batch_times  # noqa: PLC0415 (not in a child)

    engines = {}
    for name in _ENGINES if FLAGS.platform == "cpu" else ("jaxdelegate",):
        try:
            engines[name] = _ENGINES[name](path)
        except ImportError:
            print(f"{name} is not installed")
    engine = engines["jaxdelegate"][0]
    prompt = prompt_of(engine, FLAGS.prompt_tokens)
    tokens = len(engine.prompt_ids(prompt))
    texts = {
        n: Run(session(FLAGS.answer_tokens), prompt).text for n, (_, session) in engines.items()
    }
    times: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in engines} for kind in ("prefill", "answer")
    }
    prompts = [engine.prompt_ids(f"{n} {prompt}") for n in range(FLAGS.batch)]
    start = time.perf_counter()
    engine.generate(prompts, max_output_tokens=FLAGS.answer_tokens)
    found: dict[str, Any] = {"first_batch_s": time.perf_counter() - start}
    batch_times(engine, prompts, FLAGS.answer_tokens)
    batch, parts = list[float](), []
    for _ in range(FLAGS.rounds):
        for name, (_, session) in engines.items():
            run = Run(session(FLAGS.answer_tokens), prompt)
            times["prefill"][name].append(run.prefill)
            times["answer"][name].append(run.whole - run.prefill)
        start = time.perf_counter()
        answers = engine.generate(prompts, max_output_tokens=FLAGS.answer_tokens)
        seconds = time.perf_counter() - start
        batch.append(sum(c.completion_tokens for c in answers) / seconds)
        parts.append(batch_times(engine, prompts, FLAGS.answer_tokens))
    found |= {"tokens": tokens, "weights_mb": engine.weight_bytes / 1e6}
    for kind, own in times.items():
        count = tokens if kind == "prefill" else FLAGS.answer_tokens
        found[f"{kind}_tokens_per_s"] = {
            name: spread([count / t for t in seconds]) for name, seconds in own.items()
        }
        if "litert_lm" in own:
            found[f"{kind}_ratio"] = ratios(own, "litert_lm")["jaxdelegate"]
    steps = [part.answer_tokens_per_s for part in parts]
    own = [FLAGS.answer_tokens / t for t in times["answer"]["jaxdelegate"]]
    found |= {
        "batch_tokens_per_s": spread(batch),
        "batch_caches_s": spread([part.caches_s for part in parts]),
        "batch_prompt_tokens_per_s": spread([part.prompt_tokens_per_s for part in parts]),
        "batch_answer_tokens_per_s": spread(steps),
        "batch_ratio": spread([a / b for a, b in zip(steps, own, strict=True)]),
    }
    if "litert_lm" in texts:
        a, b = texts["jaxdelegate"], texts["litert_lm"]
        pairs = enumerate(zip(a, b, strict=False))
        equal = next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))
        found |= {"characters": len(b), "equal_characters": equal}
    found["same_prompt_s"] = same_prompt(engine, prompt)
    found["process"] = {name: child(name, path) for name in engines}
    return found


def main(arguments: list[str]) -> None:
    if FLAGS.child:
        in_child(arguments[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, arguments[1:]):
            # litert_lm writes its cache next to the bundle.
            copy = shutil.copy(path, folder)
            found = measure(str(copy))
            import jax  # noqa: PLC0415 (the engine did, so that it knows the default settings)

            head = {"bench": "language_models", "bundle": path.name, "threads": threads()}
            kind = jax.devices(FLAGS.platform)[0].device_kind
            head |= {"platform": FLAGS.platform, "device_kind": kind}
            head |= {"compute_dtype": FLAGS.compute_dtype}
            append({**head, "batch": FLAGS.batch, **found}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
