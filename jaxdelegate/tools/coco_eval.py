"""`jaxdelegate coco_eval`: average precision of an object detector."""

from absl import flags

from jaxdelegate.evaluation.coco import CLASS_OFFSET, evaluate_coco
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.tools import evaluation_flags

DELEGATES = True
FLAGS = (
    *evaluation_flags.FLAGS,
    evaluation_flags.LABELS,
    Flag("instances_file", str, None, "COCO's instances json, like instances_val2017.json."),
    Flag(
        "ground_truth_proto", str, None,
        "A tflite.evaluation.ObjectDetectionGroundTruth instead: binary, or text if it ends in "
        ".pbtxt. Without either, the tool only predicts.",
    ),
    Flag(
        "allowlist_file", str, None,
        "A file with the ids of the images to keep of the instances file, one per line.",
    ),
    Flag("class_offset", int, CLASS_OFFSET, "From the model's classes to class ids."),
    Flag("debug_mode", bool, False, "Print every image's objects."),
)  # fmt: skip


def run(values: flags.FlagValues) -> int:
    """Evaluate and print; returns 3 if images were skipped."""
    result = evaluation_flags.evaluate(
        values,
        evaluate_coco,
        instances=values.instances_file,
        ground_truth_proto=values.ground_truth_proto,
        allowlist=values.allowlist_file,
        class_offset=values.class_offset,
    )
    if values.debug_mode:
        print(result.predictions())
    return evaluation_flags.report(values, result)
