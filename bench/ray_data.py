"""Ray Data with two actors against two plain processes of the same program.

    python bench/ray_data.py [--images=5000] [--rounds=3] [--model=mobilenet_v2_1.0_224.tflite]
        [--folder=/tmp/ray_data] [--batch=8] [--block_mb=128] [--store_mb=1024]
        [--killed] [--out=bench/results/ray_data.jsonl]

Images are generated once into Parquet files of `--folder`. Each side has two processes with one
thread each, which load the same stored program and run the same step (ray_worker.py) on batches of
the same size; they take turns for `--rounds` rounds. The rate is that of the steady state: images
that were done after both processes finished their first batch and before the first of them finished
its last. Both sides must return every image once, with the same bits. `--killed` also kills the
process of an actor in the middle of a run, which must not change the results.

The bound: Ray Data reaches at least 0.9 of the plain processes' rate. The CPU time of the two
processes (`cores`) shows how much of the machine Ray's other processes took; on a shared machine it
varies less than the rate.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
from absl import app, flags
from harness import append, spread
from pyarrow import parquet
from ray_worker import SIDE, Columns, Step

from tests.support.networks import mobilenet_v2

FLAGS = flags.FLAGS
flags.DEFINE_integer("images", 5000, "How many.", 100)
flags.DEFINE_integer("batch", 8, "Images of a batch.", 1)
flags.DEFINE_integer(
    "block_mb", None, "Ray Data's target_max_block_size in MiB; unset: Ray's default.", 1
)
flags.DEFINE_integer(
    "store_mb",
    None,
    "Of Ray's object store; unset: Ray's default. A small one keeps it reading.",
    80,
)
flags.DEFINE_integer("rounds", 3, "Runs of each side.", 1)
flags.DEFINE_string("model", None, "One image input of 224 x 224; unset: MobileNet v2, random.")
flags.DEFINE_string("folder", None, "The folder of images and programs; unset: a temporary one.")
flags.DEFINE_bool("killed", False, "Also measure a run in which an actor dies.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

PROCESSES, FILES = 2, 20
BOUND = 0.9


def generated(folder: Path, count: int) -> list[str]:
    """Parquet files of encoded images, generated if they do not exist."""
    target = folder / f"images_{count}"
    paths = [target / f"{i:03}.parquet" for i in range(FILES)]
    if all(path.exists() for path in paths):
        return [str(path) for path in paths]
    target.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for path, ids in zip(paths, np.array_split(np.arange(count), FILES), strict=True):
        images = [rng.integers(0, 256, SIDE * SIDE * 3, np.uint8).tobytes() for _ in ids]
        table = pa.table({"id": pa.array(ids), "image": pa.array(images, pa.binary())})
        parquet.write_table(table, path, compression="none")
    return [str(path) for path in paths]


def on_ray(files: list[str], dies: tuple[str, int] | None = None, **arguments: Any) -> Columns:
    """The scores that two actors compute."""
    data = ray.data.read_parquet(files, override_num_blocks=FILES)
    result = data.map_batches(
        Step,
        fn_constructor_kwargs={**arguments, "dies": dies},
        batch_size=FLAGS.batch,
        compute=ray.data.ActorPoolStrategy(size=PROCESSES),
        num_cpus=1,
    )
    parts = list(result.iter_batches(batch_size=None, batch_format="numpy"))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def plain(files: list[str], model: str, programs: str, batch: int) -> Columns:
    """The scores that two processes compute, every other file each."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [f"{folder}/{i}.npz" for i in range(PROCESSES)]
        script = str(Path(__file__).with_name("ray_worker.py"))
        started = [
            subprocess.Popen(
                [sys.executable, script, model, programs, str(batch), out, *files[i::PROCESSES]],
                env={**os.environ, "NPROC": "1", "OMP_NUM_THREADS": "1"},
            )
            for i, out in enumerate(outs)
        ]
        if any(process.wait() for process in started):
            raise SystemExit("a plain process failed")
        parts = [dict(np.load(out)) for out in outs]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def steady(found: Columns) -> dict[str, float]:
    """Images per second while both processes were running, and how many cores they used."""
    first, last = [], []
    processes = np.unique(found["process"])
    if len(processes) != PROCESSES:
        raise SystemExit(
            f"expected {PROCESSES} processes, but {len(processes)} had images; a smaller "
            "--block_mb makes more tasks of a small set"
        )
    for process in processes:
        ended = found["ended"][found["process"] == process]
        first.append(ended.min())
        last.append(ended.max())
    begun, done = max(first), min(last)
    inside = (found["ended"] > begun) & (found["ended"] <= done)
    cores = 0.0
    for process in processes:
        own = found["process"] == process
        ended, used = found["ended"][own], found["processor_s"][own]
        during = (ended >= begun) & (ended <= done)
        cores += np.ptp(used[during]) / np.ptp(ended[during])
    return {"images_per_s": float(inside.sum() / (done - begun)), "cores": float(cores)}


def in_order(found: Columns, count: int) -> np.ndarray:
    """Scores by image.

    Raises:
        SystemExit: an image is missing or duplicated.
    """
    order = np.argsort(found["id"])
    if not np.array_equal(found["id"][order], np.arange(count)):
        raise SystemExit("an image is missing or duplicated")
    return found["scores"][order]


def main(_argv: list[str]) -> None:
    folder = Path(FLAGS.folder or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    content = Path(FLAGS.model).read_bytes() if FLAGS.model else mobilenet_v2()
    (folder / "model.tflite").write_bytes(content)
    files = generated(folder, FLAGS.images)
    arguments = {
        "model": str(folder / "model.tflite"),
        "programs": str(folder / "programs"),
        "batch": FLAGS.batch,
    }
    ray.init(
        num_cpus=PROCESSES + 1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=None if FLAGS.store_mb is None else FLAGS.store_mb << 20,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    if FLAGS.block_mb is not None:
        context.target_max_block_size = FLAGS.block_mb << 20
    rates: dict[str, list[float]] = {"ray": [], "plain": []}
    cores: dict[str, list[float]] = {"ray": [], "plain": []}
    walls: dict[str, list[float]] = {"ray": [], "plain": []}
    want: np.ndarray | None = None
    plain(files[:PROCESSES], **arguments)  # compiles
    for _ in range(FLAGS.rounds):
        for name, run in (("plain", plain), ("ray", on_ray)):
            begun = time.perf_counter()
            found = run(files, **arguments)
            walls[name].append(time.perf_counter() - begun)
            scores = in_order(found, FLAGS.images)
            want = scores if want is None else want
            if not np.array_equal(scores, want):
                raise SystemExit(f"{name}: scores differ by up to {np.abs(scores - want).max()}")
            seen = steady(found)
            rates[name].append(seen["images_per_s"])
            cores[name].append(seen["cores"])
    result: dict[str, Any] = {
        "bench": "ray_data",
        "graph": Path(FLAGS.model).name if FLAGS.model else "mobilenet_v2_1.0",
        "model": hashlib.sha256(content).hexdigest()[:12],
        "images": FLAGS.images,
        "batch": FLAGS.batch,
        "store_mb": FLAGS.store_mb,
        "block_mb": context.target_max_block_size >> 20,
        "rounds": FLAGS.rounds,
        "ray": ray.__version__,
        "images_per_s": {name: spread(own) for name, own in rates.items()},
        "cores": {name: spread(own) for name, own in cores.items()},
        "wall_s": {name: spread(own) for name, own in walls.items()},
        "ratio": spread([a / b for a, b in zip(rates["ray"], rates["plain"], strict=True)]),
        "cores_ratio": spread([a / b for a, b in zip(cores["ray"], cores["plain"], strict=True)]),
        "bound": BOUND,
        "equal_bits": True,
    }
    if FLAGS.killed:
        died = folder / "died"
        died.unlink(missing_ok=True)
        found = on_ray(files, dies=(str(died), FLAGS.images // 2), **arguments)
        is_equal = np.array_equal(in_order(found, FLAGS.images), want)
        result["killed"] = {"died": died.exists(), "equal_bits": bool(is_equal)}
    append(result, FLAGS.out)
    ray.shutdown()


if __name__ == "__main__":
    app.run(main)
