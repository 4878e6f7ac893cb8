"""The costs around the model: decoding, our pipeline, Ray Data, an HTTP server.

    python bench/scale.py [--only=decode,pipeline,ray,http] [--out=bench/results/scale.jsonl]

Processor time if one process does the work, so that other load on the machine does not count;
wall time if several do. docs/generate_scale.py computes docs/scale.md from it.
"""

import http.client
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from harness import append, last_line
from PIL import Image

from jaxdelegate.evaluation.images import IMAGENET_CROP, Preprocessing
from jaxdelegate.evaluation.pipeline import Pipeline

FLAGS = flags.FLAGS
flags.DEFINE_list("only", ["decode", "pipeline", "ray", "http"], "What to measure.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

SIZE = 224
BATCH = 32
IMAGE = (SIZE, SIZE, 3)
PICTURE = (500, 375)  # the usual size of ImageNet's photographs
ROUNDS = 5
BLOCK = 28  # batches: 129 MiB, the default size of Ray Data's blocks

# An ASGI application that takes an image and returns 1000 floats without computing them.
ANSWER = """
async def application(scope, receive, send):
    if scope["type"] != "http":
        return
    more, body = True, b""
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body[:4000]})
"""


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def picture(folder: Path, seed: int) -> Path:
    """Smoothed noise with grain, which takes as many bytes as a photograph."""
    rng = np.random.default_rng(seed)
    width, height = PICTURE
    rough = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
    smooth = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC), np.float32)
    grain = rng.normal(0, 14, (height, width, 1))
    path = folder / f"{seed}.jpg"
    pixels = np.clip(smooth + grain, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=90)
    return path


def decode() -> dict[str, Any]:
    """Processor time to read, decode, crop and resize one JPEG, in one thread."""
    prepare = Preprocessing(SIZE, SIZE, np.dtype(np.float32), IMAGENET_CROP)
    with tempfile.TemporaryDirectory() as folder:
        paths = [picture(Path(folder), seed) for seed in range(20)]
        size = sum(path.stat().st_size for path in paths) / len(paths)

        def once() -> None:
            for path in paths:
                prepare(path)

        once()
        ms = [1000 * cpu_seconds(once) / len(paths) for _ in range(ROUNDS)]
    return {"picture": list(PICTURE), "file_bytes": round(size), "cpu_ms_per_image": spread(ms)}


def cpu_seconds(run: Callable[[], Any]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def pipeline() -> dict[str, Any]:
    """Processor time of the evaluation's pipeline for an image, without decoding or a model."""
    image = np.zeros(IMAGE, np.uint8)
    outputs = (np.zeros((BATCH, 1000), np.float32),)
    paths = [Path(str(i)) for i in range(100 * BATCH)]

    def once() -> None:
        lines = Pipeline(
            lambda _: image,
            lambda _: lambda: outputs,
            input_shape=(BATCH, *IMAGE),
            dtype=image.dtype,
            workers=2,
        )
        for _ in lines.run(paths):
            pass

    once()
    us = [1e6 * cpu_seconds(once) / len(paths) for _ in range(ROUNDS)]
    return {"batch": BATCH, "cpu_us_per_image": spread(us)}


def ray_data() -> dict[str, Any]:
    """Wall time of Ray Data to hand a batch of decoded images to a worker and back."""
    import ray  # noqa: PLC0415
    import ray.data  # noqa: PLC0415

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:

        def seconds(blocks: int) -> float:
            images = np.zeros((BLOCK * BATCH, *IMAGE), np.uint8)
            data = ray.data.from_numpy([images] * blocks)
            begun = time.perf_counter()
            handed = data.map_batches(lambda batch: batch, batch_size=BATCH)
            for _ in handed.iter_batches(batch_size=BATCH):
                pass
            return time.perf_counter() - begun

        few, many = 2, 20
        seconds(few)
        ms = [1000 * (seconds(many) - seconds(few)) / (many - few) / BLOCK for _ in range(ROUNDS)]
    finally:
        ray.shutdown()
    version: str = ray.__version__
    return {
        "ray": version,
        "batch": BATCH,
        "block_mb": round(BLOCK * BATCH * np.prod(IMAGE) / 2**20),
        "cpus": 2,
        "wall_ms_per_batch": spread(ms),
    }


def http_server() -> dict[str, Any]:
    """Processor time of one uvicorn worker for a request of one uint8 image, and the wall time."""
    requests, body = 300, bytes(SIZE * SIZE * 3)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "answering.py").write_text(ANSWER)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "answering:application", f"--port={port}"]
        server = subprocess.Popen([*command, "--log-level=error"], cwd=folder)
        try:
            wait_for(port, server)
            connection = http.client.HTTPConnection("127.0.0.1", port)

            def ask() -> None:
                for _ in range(requests):
                    connection.request("POST", "/", body)
                    connection.getresponse().read()

            ask()
            cpu, wall = [], []
            for _ in range(ROUNDS):
                used, begun = cpu_of(server.pid), time.perf_counter()
                ask()
                wall.append(1e6 * (time.perf_counter() - begun) / requests)
                cpu.append(1e6 * (cpu_of(server.pid) - used) / requests)
        finally:
            server.terminate()
            server.wait()
    return {
        "body_bytes": len(body),
        "cpu_us_per_request": spread(cpu),
        "wall_us_per_request": spread(wall),
    }


def wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    """Wait until the server accepts connections."""
    for _ in attempts(30):
        if server.poll() is not None:
            raise OSError(f"uvicorn exited with status {server.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise OSError("uvicorn accepted no connection in 30 s")


def attempts(seconds: float) -> Iterator[None]:
    end, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < end:
        yield
        pause.wait(0.05)


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


MEASURES: dict[str, Callable[[], dict[str, Any]]] = {
    "decode": decode,
    "pipeline": pipeline,
    "ray": ray_data,
    "http": http_server,
}


def main(_: list[str]) -> None:
    for name in FLAGS.only:
        try:
            found = MEASURES[name]()
        except (ImportError, OSError) as error:
            print(f"{name}: not measured: {last_line(error)}", file=sys.stderr)
            continue
        append({"bench": "scale", "what": name, **found}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
