"""`jaxdelegate coco_eval`: average precision of an object detector."""

import dataclasses

from absl import flags

from jaxdelegate.evaluation.coco import CLASS_OFFSET, evaluate_coco
from jaxdelegate.tools import evaluation_flags


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    evaluation_flags.define(values)
    for name, text in (
        ("instances_file", "COCO's instances json, like instances_val2017.json."),
        (
            "ground_truth_proto",
            "A tflite.evaluation.ObjectDetectionGroundTruth instead: binary, or text if it ends in "
            ".pbtxt. Without either, only predictions are made.",
        ),
        ("allowlist_file", "Image ids to keep of the instances file, one per line."),
    ):
        flags.DEFINE_string(name, None, text, flag_values=values)
    flags.DEFINE_integer(
        "class_offset", CLASS_OFFSET, "From the model's classes to class ids.", flag_values=values
    )
    flags.DEFINE_bool("debug_mode", False, "Print every image's objects.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Evaluate and print; 3 if images were skipped."""
    evaluation_flags.required(values, "model_file", "ground_truth_images_path")
    settings = evaluation_flags.settings(values)
    with evaluation_flags.runner(values) as runner:
        result = evaluate_coco(
            values.model_file,
            values.ground_truth_images_path,
            values.model_output_labels,
            instances=values.instances_file,
            ground_truth_proto=values.ground_truth_proto,
            allowlist=values.allowlist_file,
            num_images=values.num_images,
            class_offset=values.class_offset,
            settings=dataclasses.replace(settings, runner=runner),
            interpreter=evaluation_flags.interpreter(values),
        )
    if values.debug_mode:
        print(result.predictions())
    return evaluation_flags.report(values, result)
