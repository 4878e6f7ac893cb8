"""`jaxdelegate imagenet_eval`: top-k accuracy of an image classifier."""

import dataclasses

from absl import flags

from jaxdelegate.evaluation.imagenet import evaluate_imagenet
from jaxdelegate.tools import evaluation_flags


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    evaluation_flags.define(values)
    for name, text in (
        (
            "ground_truth_labels",
            "A label per line, in the order of the images' names. Not for folders by synset.",
        ),
        (
            "synset_labels",
            "Lines `n01440764 tench, Tinca tinca` (synset_words.txt), for images in one folder per "
            "synset. Unset: the folders' names are the labels.",
        ),
        ("denylist_file_path", "Numbers of images, from 1, that are left out, one per line."),
    ):
        flags.DEFINE_string(name, None, text, flag_values=values)
    flags.DEFINE_alias("blacklist_file_path", "denylist_file_path", flag_values=values)
    flags.DEFINE_integer(
        "num_ranks", None, "The largest k. Unset: 10, or all labels.", 1, flag_values=values
    )


def run(values: flags.FlagValues) -> int:
    """Evaluate and print; 3 if images were skipped."""
    evaluation_flags.required(
        values, "model_file", "ground_truth_images_path", "model_output_labels"
    )
    settings = evaluation_flags.settings(values)
    with evaluation_flags.runner(values) as runner:
        result = evaluate_imagenet(
            values.model_file,
            values.ground_truth_images_path,
            values.model_output_labels,
            ground_truth_labels=values.ground_truth_labels,
            synset_labels=values.synset_labels,
            denylist=values.denylist_file_path or None,
            num_images=values.num_images,
            num_ranks=values.num_ranks,
            settings=dataclasses.replace(settings, runner=runner),
            interpreter=evaluation_flags.interpreter(values),
        )
    return evaluation_flags.report(values, result)
