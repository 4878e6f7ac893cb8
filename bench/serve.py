"""`jaxdelegate serve` under load: throughput, latency, correctness, restarts, bad requests.

    python bench/serve.py [--parts=throughput,latency] [--model=model.tflite]
        [--server_cpus=0] [--client_cpus=1] [--out=bench/results/serve.jsonl]

Servers run in their own processes; this process is the client, one thread with `--clients`
keep-alive connections and binary tensors. Each part prints a JSON line:

* throughput: `--max_batch_size=8` against 1, both servers up, loaded in turn, for MobileNet v1 0.25
  (or --model) and for wide layers, whose items take less time in a batch. An interpreter's
  milliseconds per item, at batch 1 and 8, come first.
* latency: `--max_queue_delay_us` against 0 at a share of the latter's throughput; requests come at
  random times. `implied_ms` is p99 without a delay, plus the delay and a run of the largest batch.
* answers: each response must equal the first one for its input, exactly or within 1e-5 of the
  largest value, since batch sizes round differently; the first one agrees with stock LiteRT.
* restart: from exec until `/v2/health/ready` succeeds, with a filled cache.
* sessions: interleaved sequences, each bit-equal to a separate interpreter.
* broken: bad requests and broken connections among good ones.

Inputs are distinct; a part refuses a model whose outputs are too close to detect a mix-up. The exit
status is 1 if a response was wrong or lost, never because of a time. "cpus" shows the pinning.
"""

import functools
import itertools
import logging
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from harness import append, interleaved, percentile_ms, spread
from http_clients import Pool, infer, open_loop, run
from serve_broken import send_broken
from serve_load import Load, Record, Work, dense, network, percentiles
from serve_sessions import run_sessions
from server_process import pinned

import jaxdelegate as jd
from jaxdelegate.testing.running import run_once

FLAGS = flags.FLAGS
flags.DEFINE_list("parts", [], "Only these; none: all.")
flags.DEFINE_string("model", None, "A float .tflite; unset: MobileNet v1 0.25, built in memory.")
flags.DEFINE_integer("size", 128, "Of MobileNet's images.", 32)
flags.DEFINE_integer("width", 2048, "Of the wide layers.", 8)
flags.DEFINE_integer("layers", 4, "How many wide layers.", 1)
flags.DEFINE_string("streaming_model", None, "With states; unset: the examples' keywords.")
flags.DEFINE_integer("clients", 64, "Connections.", 1)
flags.DEFINE_integer("pool", 256, "Distinct inputs.", 2)
flags.DEFINE_integer("rounds", 9, "Of throughput and latency.", 1)
flags.DEFINE_float("seconds", 5, "Of a round, for each server.", 0.05)
flags.DEFINE_integer("delay_us", 2000, "Of the latency part.", 1)
flags.DEFINE_float("load", 0.5, "Of the latency part: share of what a server can do.", 0.01, 0.95)
flags.DEFINE_integer("requests", 100_000, "Of the answers part.", 10)
flags.DEFINE_integer("starts", 9, "Of the restart part.", 1)
flags.DEFINE_integer("sessions", 500, "Sequences.", 1)
flags.DEFINE_integer("steps", 20, "Of each sequence.", 1)
flags.DEFINE_integer("count", 10_000, "Of bad requests.", 10)
flags.DEFINE_list("server_cpus", [], "Pin servers to these; none: all.")
flags.DEFINE_list("client_cpus", [], "Pin the client to these; none: all.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

BATCH = 8


def item_ms(work: Work, path: Path, pool: Pool) -> dict[str, float]:
    """Milliseconds per item at batch 1 and BATCH, of an interpreter, on the server's cpus."""
    calls: dict[str, Callable[[], Any]] = {}
    with pinned(work.server_cpus):
        for size in (1, BATCH):
            delegate = jd.JaxDelegate(rebatch=size > 1)
            interpreter = jd.Interpreter(str(path), experimental_delegates=[delegate])
            arrays = [np.concatenate([y] * size) for y in pool.inputs[0].values()]
            run_once(interpreter, arrays)
            calls[str(size)] = interpreter.invoke
        times = interleaved(calls, rounds=30, seconds=10)
    return {size: 1e3 * statistics.median(t) / int(size) for size, t in times.items()}


def throughput(work: Work) -> Iterator[tuple[Record, int]]:
    wide = f"dense_{FLAGS.width}x{FLAGS.layers}", dense(FLAGS.width, FLAGS.layers)
    each = {f"batch_{n}": [f"--max_batch_size={n}"] for n in (BATCH, 1)}
    for name, content in (network(FLAGS.model, FLAGS.size), wide):
        path, pool = work.file(name, content), Pool(content, FLAGS.pool)
        items = item_ms(work, path, pool)
        with work.servers(path, each) as servers:
            loads = {label: Load(server, pool, FLAGS.clients) for label, server in servers.items()}
            rates, seconds = run(_rounds(loads))
            yield (
                {
                    "model": name,
                    "item_ms": items,
                    "item_ratio": items[str(BATCH)] / items["1"],
                    "least_apart": pool.least_apart,
                    "per_second": {label: spread(own) for label, own in rates.items()},
                    "latency": {label: percentiles(own) for label, own in seconds.items()},
                    "ratio": spread(
                        [a / b for a, b in zip(*(rates[label] for label in each), strict=True)]
                    ),
                    "servers": {label: load.record() for label, load in loads.items()},
                },
                sum(load.judge.failures for load in loads.values()),
            )


async def _rounds(
    loads: dict[str, Load],
) -> tuple[dict[str, list[float]], dict[str, list[list[float]]]]:
    """Responses per second and seconds of each, by label; the first round is not counted."""
    rates: dict[str, list[float]] = {label: [] for label in loads}
    seconds: dict[str, list[list[float]]] = {label: [] for label in loads}
    for load in loads.values():
        await load.begin()
    for number in range(FLAGS.rounds + 1):
        for label, load in list(loads.items())[:: 1 if number % 2 else -1]:
            rate, found = await load.round(FLAGS.seconds)
            if number:
                rates[label].append(rate)
                seconds[label].append(found)
    return rates, seconds


def latency(work: Work) -> Iterator[tuple[Record, int]]:
    each = {
        "delayed": [f"--max_batch_size={BATCH}", f"--max_queue_delay_us={FLAGS.delay_us}"],
        "at_once": [f"--max_batch_size={BATCH}"],
    }
    name, content = network(FLAGS.model, FLAGS.size)
    path, pool = work.file(name, content), Pool(content, FLAGS.pool)
    largest_ms = BATCH * item_ms(work, path, pool)[str(BATCH)]
    with work.servers(path, each) as servers:
        loads = {label: Load(server, pool, FLAGS.clients) for label, server in servers.items()}
        rate, seconds, late = run(_open_rounds(loads))
        found = {label: percentiles(own) for label, own in seconds.items()}
        p99 = {label: own["p99_ms"]["median"] for label, own in found.items()}
        implied = p99["at_once"] + FLAGS.delay_us / 1e3 + largest_ms
        yield (
            {
                "model": name,
                "delay_us": FLAGS.delay_us,
                "load": FLAGS.load,
                "rate": rate,
                "latency": found,
                "largest_batch_ms": largest_ms,
                "implied_ms": implied,
                "is_within": p99["delayed"] <= implied,
                "sent_late_p99_ms": percentile_ms(late, 99),
                "servers": {label: load.record() for label, load in loads.items()},
            },
            sum(load.judge.failures for load in loads.values()),
        )


async def _open_rounds(
    loads: dict[str, Load],
) -> tuple[float, dict[str, list[list[float]]], list[float]]:
    """The rate, seconds of responses by label and round, and how late requests were sent."""
    for load in loads.values():
        await load.begin()
    for _ in range(2):  # the first one warms up
        most, _ = await loads["at_once"].round(FLAGS.seconds)
    rate, late = FLAGS.load * most, list[float]()
    seconds: dict[str, list[list[float]]] = {label: [] for label in loads}
    for number in range(FLAGS.rounds):
        for label, load in list(loads.items())[:: 1 if number % 2 else -1]:
            port, requests, take = load.server.port, load.requests, load.judge.take
            found, own = await open_loop(
                port, FLAGS.clients, requests, take, rate=rate, span=FLAGS.seconds
            )
            seconds[label].append(found)
            late += own
    return rate, seconds, late


def answers(work: Work) -> Iterator[tuple[Record, int]]:
    content = dense(64, 2)
    path, pool = work.file("small", content), Pool(content, FLAGS.pool)
    with work.servers(path, {"batch_8": [f"--max_batch_size={BATCH}"]}) as servers:
        load = Load(servers["batch_8"], pool, FLAGS.clients)
        memory, rate = run(_many(load))
        missing = FLAGS.requests - sum(load.judge.counts.values())
        yield (
            {
                "model": "dense_64x2",
                "requests": FLAGS.requests,
                "missing": missing,
                "per_second": rate,
                "rss_anon_mb": memory,
                "least_apart": pool.least_apart,
                **load.record(),
            },
            load.judge.failures + abs(missing),
        )


async def _many(load: Load) -> tuple[list[float], float]:
    """Memory after a tenth of the requests and at the end; responses per second in between."""
    await load.begin()
    keyed = itertools.cycle(enumerate(load.requests))
    await load.closed(itertools.islice(keyed, FLAGS.requests // 10))
    before = load.server.rss_anon_mb()
    rest = FLAGS.requests - FLAGS.requests // 10
    rate, _ = await load.closed(itertools.islice(keyed, rest))
    return [before, load.server.rss_anon_mb()], rate


def restart(work: Work) -> Iterator[tuple[Record, int]]:
    name, content = network(FLAGS.model, FLAGS.size)
    path = work.file(name, content)
    work.fill_cache(path)
    ready, cpu, compiled, found = [], [], 0.0, 0.0
    for _ in range(FLAGS.starts):
        with work.server(path) as server:
            ready.append(server.wait_until_ready())
            cpu.append(server.cpu_seconds())
            counters = server.metrics()
            compiled += counters["compile_count"]
            found += counters["cache_hit_count"]
    yield (
        {
            "model": name,
            "starts": FLAGS.starts,
            "ready_s": {**spread(ready), "max": max(ready)},
            "cpu_s": {**spread(cpu), "max": max(cpu)},
            "compiled": compiled,
            "from_cache": found,
        },
        0,
    )


def sessions(work: Work) -> Iterator[tuple[Record, int]]:
    default = Path(__file__).parents[1] / "examples/sample_tasks/networks/keywords.tflite"
    path = Path(FLAGS.streaming_model or default)
    with work.servers(path, {"one": []}) as servers:
        cache = work.directory / "interpreters"
        found = run_sessions(
            servers["one"],
            path,
            cache,
            sessions=FLAGS.sessions,
            steps=FLAGS.steps,
            clients=FLAGS.clients,
        )
        memory = servers["one"].rss_anon_mb()
    yield {"model": path.stem, **found, "rss_anon_mb": memory}, found["wrong"] + found["lost"]


def broken(work: Work) -> Iterator[tuple[Record, int]]:
    content = dense(64, 2)
    path, pool = work.file("small", content), Pool(content, 2)
    with work.servers(path, {"one": []}, is_quiet=True) as servers:
        load = Load(servers["one"], pool, FLAGS.clients)
        port, inputs = load.server.port, pool.inputs[0]
        make = functools.partial(infer, port, "m")
        found = run(send_broken(load, make, inputs, FLAGS.count))
        yield {**found, **load.record()}, load.judge.failures + found["unexpected"]


PARTS: dict[str, Callable[[Work], Iterator[tuple[Record, int]]]] = {
    part.__name__: part for part in (throughput, latency, answers, restart, sessions, broken)
}


def main(argv: list[str]) -> int:
    if argv[1:]:
        raise app.UsageError(f"unknown: {' '.join(argv[1:])}; a model is given by --model")
    names = FLAGS.parts or list(PARTS)
    if unknown := set(names) - set(PARTS):
        raise app.UsageError(f"--parts: unknown: {', '.join(sorted(unknown))}; {', '.join(PARTS)}")
    logging.getLogger("jaxdelegate").setLevel(logging.ERROR)
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        work = Work(Path(directory), {int(cpu) for cpu in FLAGS.server_cpus})
        if FLAGS.client_cpus:
            os.sched_setaffinity(0, {int(cpu) for cpu in FLAGS.client_cpus})
        count = os.cpu_count()  # "machine" counts those that the client may use
        cpus = {
            "all": count,
            "server": FLAGS.server_cpus or None,
            "client": FLAGS.client_cpus or None,
        }
        for name in names:
            for record, wrong in PARTS[name](work):
                failures += wrong
                line = {"bench": "serve", "part": name, "clients": FLAGS.clients, "cpus": cpus}
                append({**line, **record}, FLAGS.out)
    if failures:
        print(f"{failures} responses were wrong or lost", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    app.run(main)
