"""Flags and output that imagenet_eval and coco_eval share; TFLite's names where it has one."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.evaluation.metrics_file import check_metrics_path, write_metrics
from jaxdelegate.evaluation.results import is_results_path
from jaxdelegate.evaluation.run import ImageRun, RunSettings
from jaxdelegate.ray.evaluation import Cluster, RayRunner
from jaxdelegate.text import printable
from jaxdelegate.tools import delegate_flags, delegate_names

SOME_SKIPPED = 3  # the exit code of a run that left out images it could not use


def define(values: flags.FlagValues) -> None:
    """Declare them, and the delegates' flags."""
    for name, text in (
        ("model_file", "The .tflite file."),
        ("model_output_labels", "A label per line, in the order of the model's outputs."),
        ("ground_truth_images_path", "The folder of images, taken in order of their names."),
        (
            "output_file_path",
            "Write the metrics here: a serialized tflite.evaluation.EvaluationStageMetrics, or "
            "JSON if it ends in .json. If it ends in .jsonl or .parquet: results_file_path.",
        ),
        (
            "results_file_path",
            "Write a row per image here, .jsonl or .parquet. A killed run leaves <name>.part "
            "next to it, from which the same command resumes.",
        ),
    ):
        flags.DEFINE_string(name, None, text, flag_values=values)
    flags.DEFINE_integer("num_images", 0, "How many images; 0: all.", 0, flag_values=values)
    flags.DEFINE_integer(
        "batch_size",
        32,
        "Images per invocation; 1 if the model does not follow.",
        1,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_decode_threads",
        None,
        "Threads that decode images. Unset: one per CPU.",
        1,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_devices",
        1,
        "Devices that take batches in turn, the first ones of JaxDelegate's platform; 0: all.",
        0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "ray_address",
        None,
        "Run on the actors of this Ray cluster: host:port, 'auto', or 'local' for a Ray of its "
        "own. They read the model and the images from a shared disk.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "ray_actors", None, "How many actors. Unset: all that fit.", 1, flag_values=values
    )
    flags.DEFINE_float("ray_cpus", 1.0, "CPUs of each actor.", 0.0, flag_values=values)
    flags.DEFINE_float(
        "ray_gpus",
        None,
        "GPUs of each actor, at most 1. Unset: 1 if the cluster has GPUs.",
        0.0,
        flag_values=values,
    )
    flags.DEFINE_bool("resume", True, "Take up a run that was killed.", flag_values=values)
    delegate_names.define(values)
    delegate_flags.define(values)


def required(values: flags.FlagValues, *names: str) -> None:
    """Insist on flags.

    Raises:
        OptionError: one is not given.
    """
    missing = [name for name in names if not getattr(values, name)]
    if missing:
        raise OptionError(f"--{missing[0]} is required")


def settings(values: flags.FlagValues) -> RunSettings:
    """How the images are run.

    Raises:
        OptionError: an impossible value or combination.
    """
    delegate_names.settle(values)
    metrics, results = _output_paths(values)
    if metrics is not None:
        check_metrics_path(metrics)
    return RunSettings(
        batch_size=values.batch_size,
        decode_threads=values.num_decode_threads,
        results_path=results,
        resume=values.resume,
        runs_on=delegate_flags.as_dict(values),
    )


def _output_paths(values: flags.FlagValues) -> tuple[Path | None, Path | None]:
    """Where metrics go, and per-image results."""
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
def runner(values: flags.FlagValues) -> Iterator[RayRunner | None]:
    """What runs the images on a Ray cluster, as long as the context; None: this process does.

    Raises:
        OptionError: no such cluster, no Ray, or `--ray_...` without `--ray_address`.
    """
    if values.ray_address is None:
        lost = [n for n in ("ray_actors", "ray_gpus") if getattr(values, n) is not None]
        if lost:
            raise OptionError(f"--{lost[0]} needs --ray_address")
        yield None
        return
    if values.num_devices != 1:
        raise OptionError("--num_devices is of this process, --ray_address of others: give one")
    cluster = Cluster(
        address=values.ray_address,
        actors=values.ray_actors,
        cpus=values.ray_cpus,
        gpus=values.ray_gpus,
    )
    with RayRunner(cluster, delegate_flags.as_dict(values)) as joined:
        yield joined


def interpreter(values: flags.FlagValues) -> Any:
    """The interpreter of the model, with its delegates; with --num_devices one for each device.

    None where actors have theirs.

    Raises:
        ModelError: the file is no model.
        OptionError: an impossible value or combination.
    """
    if values.ray_address is not None:
        return None
    if values.num_devices != 1:
        return delegate_flags.on_devices(values, values.model_file, values.num_devices)
    return delegate_flags.interpreter(values, values.model_file)


def report(values: flags.FlagValues, result: Any) -> int:
    """Print a result and write its metrics; the exit code."""
    run: ImageRun = result.run
    print(result)
    print(f"Batch size: {run.batch_size}")
    if run.devices > 1:
        print(f"Devices: {run.devices}")
    print(f"Waits: {run.waits}")
    if run.num_resumed:
        print(f"Resumed: {run.num_resumed} images were evaluated by an earlier run")
    metrics, _ = _output_paths(values)
    if metrics is not None:
        write_metrics(metrics, result.to_proto())
    for note in result.notes:
        print(f"WARN: {printable(note)}", file=sys.stderr)
    for skipped in run.skipped:
        print(f"skipped {printable(str(skipped))}", file=sys.stderr)
    if run.skipped:
        print(f"jaxdelegate: {len(run.skipped)} images were skipped", file=sys.stderr)
    return SOME_SKIPPED if run.skipped else 0
