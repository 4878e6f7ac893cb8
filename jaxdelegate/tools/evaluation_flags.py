"""Flags and output that imagenet_eval and coco_eval share; TFLite's names where it has one."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.evaluation.results import is_results_path, write_metrics
from jaxdelegate.evaluation.run import ImageRun, RunSettings
from jaxdelegate.providers import open_on_devices
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.ray.evaluation import RayRunner
from jaxdelegate.text import plural, printable
from jaxdelegate.tools import delegate_flags

LABELS = Flag(
    "model_output_labels", str, None, "A label per line, in the order of the model's outputs."
)
FLAGS = (
    Flag("model_file", str, None, "The .tflite file.", is_required=True),
    Flag(
        "ground_truth_images_path", str, None,
        "The folder of images, which run in the order of their names.", is_required=True,
    ),
    Flag(
        "output_file_path", str, None,
        "Write the metrics here: a serialized tflite.evaluation.EvaluationStageMetrics, or "
        "JSON if it ends in .json. If it ends in .jsonl or .parquet: results_file_path.",
        is_output=True,
    ),
    Flag(
        "results_file_path", str, None,
        "Write a row per image here, .jsonl or .parquet. A killed run leaves <name>.part "
        "next to it, from which the same command resumes.",
        is_output=True,
    ),
    Flag("num_images", int, 0, "How many images; 0: all.", lower=0),
    Flag(
        "batch_size", int, 32,
        "Images per invocation; 1 if the model does not support batches.", lower=1,
    ),
    Flag(
        "num_decode_threads", int, None, "Threads that decode images. Unset: one per CPU.",
        lower=1,
    ),
    Flag(
        "num_devices", int, 1,
        "Devices that take batches in turn, the first ones of JaxDelegate's platform; 0: all.",
        lower=0,
    ),
    Flag(
        "ray_address", str, None,
        "Run on the actors of this Ray cluster: host:port, 'auto', or 'local' to start a Ray for "
        "this run. They read the model and the images from a shared disk.",
    ),
    Flag("ray_actors", int, None, "Number of actors. Unset: as many as fit.", lower=1),
    Flag("ray_cpus", float, 1.0, "CPUs of each actor.", lower=0.0),
    Flag(
        "ray_gpus", float, None,
        "GPUs of each actor, at most 1. Unset: 1 if the cluster has GPUs.", lower=0.0,
    ),
    Flag("resume", bool, True, "Continue a killed run."),
    *delegate_flags.SHORT_NAMES,
)  # fmt: skip
SOME_SKIPPED = 3  # the exit code of a run that skipped images it could not use


def evaluate(values: flags.FlagValues, function: Callable[..., Any], **arguments: Any) -> Any:
    settings = RunSettings(
        batch_size=values.batch_size,
        decode_threads=values.num_decode_threads,
        results_path=_output_paths(values)[1],
        resume=values.resume,
        runs_on=delegate_flags.read(values).given(),
    )
    with _runner(values) as runner:
        return function(
            values.model_file,
            values.ground_truth_images_path,
            values.model_output_labels,
            num_images=values.num_images,
            settings=dataclasses.replace(settings, runner=runner),
            interpreter=_interpreter(values),
            **arguments,
        )


def _output_paths(values: flags.FlagValues) -> tuple[Path | None, Path | None]:
    output, results = values.output_file_path, values.results_file_path
    if output and is_results_path(output):
        if results:
            raise OptionError(
                f"--output_file_path {output!r} and --results_file_path {results!r} are both "
                "per-image results; give one"
            )
        output, results = None, output
    return (Path(output) if output else None), (Path(results) if results else None)


@contextlib.contextmanager
def _runner(values: flags.FlagValues) -> Iterator[RayRunner | None]:
    """Runs the images on a Ray cluster; None: this process does."""
    if values.ray_address is None:
        unused = [n for n in ("ray_actors", "ray_gpus") if getattr(values, n) is not None]
        if unused:
            raise OptionError(f"--{unused[0]} needs --ray_address")
        yield None
        return
    if values.num_devices != 1:
        raise OptionError(
            "--num_devices is for this process, --ray_address for other processes; give one"
        )
    runner = RayRunner(
        delegate_flags.read(values).given(),
        address=values.ray_address,
        actors=values.ray_actors,
        cpus=values.ray_cpus,
        gpus=values.ray_gpus,
    )
    with contextlib.closing(runner):
        yield runner


def _interpreter(values: flags.FlagValues) -> Any:
    """The interpreter, a list of them with --num_devices, or None where actors have theirs."""
    if values.ray_address is not None:
        return None
    if values.num_devices != 1:
        return open_on_devices(delegate_flags.read(values), values.model_file, values.num_devices)
    return delegate_flags.interpreter(values, values.model_file)


def report(values: flags.FlagValues, result: Any) -> int:
    """Print a result and write its metrics; returns the exit code."""
    run: ImageRun = result.run
    print(result)
    print(f"Batch size: {run.batch_size}")
    if run.devices > 1:
        print(f"Devices: {run.devices}")
    print(f"Waits: {run.waits}")
    if run.num_resumed:
        print(f"Resumed: {plural(run.num_resumed, 'image')} evaluated by an earlier run")
    metrics, _ = _output_paths(values)
    if metrics is not None:
        write_metrics(metrics, result.to_proto())
    for note in result.notes:
        print(f"WARN: {printable(note)}", file=sys.stderr)
    for skipped in run.skipped:
        print(f"skipped {printable(str(skipped))}", file=sys.stderr)
    if run.skipped:
        print(f"jaxdelegate: skipped {plural(len(run.skipped), 'image')}", file=sys.stderr)
    return SOME_SKIPPED if run.skipped else 0
