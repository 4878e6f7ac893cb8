"""`jaxdelegate imagenet_eval`: top-k accuracy of an image classifier."""

import dataclasses

from absl import flags

from jaxdelegate.evaluation.imagenet import evaluate_imagenet
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.tools import evaluation_flags

DELEGATES = True
FLAGS = (
    *evaluation_flags.FLAGS,
    dataclasses.replace(evaluation_flags.LABELS, is_required=True),
    Flag(
        "ground_truth_labels", str, None,
        "A label per line, in the order of the images' names. Not for folders by synset.",
    ),
    Flag(
        "synset_labels", str, None,
        "Lines `n01440764 tench, Tinca tinca` (synset_words.txt), for images in one folder per "
        "synset. Unset: the folders' names are the labels.",
    ),
    Flag(
        "denylist_file_path", str, None,
        "Numbers of images to leave out, from 1, one per line.",
    ),
    Flag("num_ranks", int, None, "The largest k. Unset: 10, or all labels.", lower=1),
)  # fmt: skip


def run(values: flags.FlagValues) -> int:
    """Evaluate and print; returns 3 if images were skipped."""
    result = evaluation_flags.evaluate(
        values,
        evaluate_imagenet,
        ground_truth_labels=values.ground_truth_labels,
        synset_labels=values.synset_labels,
        denylist=values.denylist_file_path or None,
        num_ranks=values.num_ranks,
    )
    return evaluation_flags.report(values, result)
