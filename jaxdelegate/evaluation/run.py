"""One pass over images: decode ahead, run in batches, store the rows, resume."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from jaxdelegate import protos
from jaxdelegate.errors import check_least
from jaxdelegate.evaluation.files import DataError, StrPath
from jaxdelegate.evaluation.model import ImageModel, open_interpreter, open_on_devices
from jaxdelegate.evaluation.pipeline import Batch, BatchSource, Outputs, Waits
from jaxdelegate.evaluation.results import (
    PartFile,
    Row,
    check_results_path,
    identity,
    write_results,
)
from jaxdelegate.measuring.stats import Latency


class Runner(Protocol):
    def open(self, path: StrPath, *, batch_size: int, num_outputs: int) -> ImageModel:
        """`open_image_model` without an interpreter: the model runs elsewhere."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    batch_size: int = 32  # images per invocation; 1 if the model does not support batches
    decode_threads: int | None = None  # None: one per CPU
    results_path: StrPath | None = None  # a file for per-image results, .jsonl or .parquet
    resume: bool = True  # continue a run that was killed, from the part file next to the results
    # Must be the same in a run that is resumed.
    runs_on: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    runner: Runner | None = None  # None: this process runs the images

    def __post_init__(self) -> None:
        check_least(1, batch_size=self.batch_size, decode_threads=self.decode_threads)
        if self.results_path is not None:
            check_results_path(self.results_path)


@dataclasses.dataclass(frozen=True)
class Skipped:
    image: str
    reason: str

    def __str__(self) -> str:
        return f"{self.image}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class ImageRun:
    rows: tuple[Row, ...]
    batch_size: int
    num_resumed: int  # images whose rows come from an earlier run
    preprocessing: Latency  # per image
    inference: Latency  # per image
    waits: Waits  # where the time went
    notes: tuple[str, ...]  # what the user may want to know about how the model ran
    devices: int = 1  # how many devices took batches in turn

    @property
    def good(self) -> list[Row]:
        return [row for row in self.rows if row["error"] is None]

    def metrics(self, stage: str) -> tuple[Any, Any]:
        """TFLite's EvaluationStageMetrics, and its part for `stage`, a field of ProcessMetrics."""
        metrics = protos.message("tflite.evaluation.EvaluationStageMetrics")
        metrics.num_runs = len(self.good)
        target = getattr(metrics.process_metrics, stage)
        self.preprocessing.fill(target.pre_processing_latency)
        self.inference.fill(target.inference_latency)
        target.inference_metrics.num_inferences = len(self.good)
        return metrics, target

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        bad = (row for row in self.rows if row["error"] is not None)
        return tuple(Skipped(row["image"], row["error"]) for row in bad)

    def __str__(self) -> str:
        return (
            f"Num evaluation runs: {len(self.good)}\n"
            f"Preprocessing latency: {self.preprocessing}\n"
            f"Inference latency: {self.inference}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    run: ImageRun
    notes: tuple[str, ...]

    @property
    def num_images(self) -> int:
        return len(self.run.good)


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    images: Sequence[Row]  # the columns that are known of each image; `image` is its name
    crop_fraction: float | None  # as in `Preprocessing`
    options: Mapping[str, Any]  # everything else that rows depend on
    columns: Mapping[str, str]  # their Parquet types, in their order, except `error`
    row: Callable[[int, Outputs], Row]  # the other columns, from an image's number and outputs

    @property
    def names(self) -> list[str]:
        return [image["image"] for image in self.images]

    def rows(self, batch: Batch) -> list[Row]:
        """The rows of a batch; a skipped image has empty columns and an error."""
        return [
            {**self.images[i], **self._computed(i, outputs), "error": error}
            for i, (error, outputs) in enumerate(
                zip(batch.errors, batch.outputs, strict=True), batch.first
            )
        ]

    def _computed(self, i: int, outputs: Outputs | None) -> Row:
        if outputs is not None:
            return self.row(i, outputs)
        kinds = ((name, kind) for name, kind in self.columns.items() if name not in self.images[i])
        return {name: [] if kind.endswith("[]") else None for name, kind in kinds}


def open_to_run(
    path: StrPath,
    interpreter: Any,
    settings: RunSettings,
    *,
    num_images: int,
    num_outputs: int,
) -> ImageModel:
    """Open the model in this process, or with the runner of the settings.

    The interpreter is not allocated; it may be a list with one for each device. None:
    jaxdelegate's, with JaxDelegate. A runner does not use it.
    """
    size = min(settings.batch_size, num_images)
    if settings.runner is not None:
        return settings.runner.open(path, batch_size=size, num_outputs=num_outputs)
    interpreter = open_interpreter(path) if interpreter is None else interpreter
    return open_on_devices(path, interpreter, batch_size=size, num_outputs=num_outputs)


def run_images(task: Task, model: ImageModel, folder: StrPath, settings: RunSettings) -> ImageRun:
    """Run every image of a task; the rows of damaged images have an error."""
    paths = [Path(folder, name) for name in task.names]
    pipeline = model.batches(task.crop_fraction, settings.decode_threads)
    if settings.results_path is None:
        rows: list[Row] = []
        _collect(pipeline, task, paths, rows, rows.extend)
        done = 0
    else:
        rows, done = _collect_on_disk(pipeline, task, model, paths, settings)
    run = ImageRun(
        rows=tuple(rows),
        batch_size=model.batch_size,
        num_resumed=done,
        preprocessing=pipeline.times.preprocessing,
        inference=pipeline.times.inference,
        waits=pipeline.waits,
        notes=model.notes,
        devices=model.devices,
    )
    if not run.good:
        raise DataError(f"none of {len(rows)} images could be used; the first: {run.skipped[0]}")
    return run


def _collect_on_disk(
    pipeline: BatchSource,
    task: Task,
    model: ImageModel,
    paths: Sequence[Path],
    settings: RunSettings,
) -> tuple[list[Row], int]:
    target = check_results_path(settings.results_path or "")
    options = {
        **task.options,
        "crop_fraction": task.crop_fraction,
        "batch_size": model.batch_size,
        "runs_on": dict(settings.runs_on),
    }
    listed = ((name, _size(path)) for name, path in zip(task.names, paths, strict=True))
    run = identity(task.name, model.digest, options, listed)
    part = target.with_name(f"{target.name}.part")
    with PartFile(
        part, run, batch_size=model.batch_size, total=len(paths), resume=settings.resume
    ) as file:
        done = len(file.rows)
        _collect(pipeline, task, paths, file.rows, file.add)
    write_results(target, file.rows, {**task.columns, "error": "string"})
    part.unlink()
    return file.rows, done


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None  # the run will skip it


def _collect(
    pipeline: BatchSource,
    task: Task,
    paths: Sequence[Path],
    rows: Sequence[Row],
    add: Callable[[list[Row]], None],
) -> None:
    bar = tqdm(total=len(paths), initial=len(rows), desc=task.name, unit="image", disable=None)
    with bar, contextlib.closing(pipeline.run(paths, len(rows))) as batches:
        for batch in batches:
            add(task.rows(batch))
            bar.update(len(batch.errors))
