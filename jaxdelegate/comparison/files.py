"""Compares two files on the same inputs: float and quantized, or before and after a save."""

import dataclasses

from tqdm import tqdm

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.diff import (
    InferenceDiff,
    Sides,
    check_counts,
    name_of,
    with_usable_indices,
)
from jaxdelegate.comparison.file_pair import FilePair
from jaxdelegate.comparison.inputs import InputSettings
from jaxdelegate.comparison.metrics import Comparer
from jaxdelegate.comparison.random_numbers import random_outputs
from jaxdelegate.comparison.sides import ModelPath, Runner, Test, reference_runner
from jaxdelegate.comparison.verdict import EndToEnd, precision
from jaxdelegate.model.records import read_model


def file_diff(
    model: ModelPath,
    against: ModelPath,
    test: Test,
    *,
    reference: str = "numpy",
    num_runs: int = 50,
    invocations_per_run: int = 1,
    inputs: InputSettings | None = None,
    bounds: Bounds | None = None,
) -> InferenceDiff:
    """Run a model with delegates, another in a reference interpreter, and compare.

    The arguments are those of `inference_diff`; `against` is the file that the reference runs. Both
    get the same real inputs, and their outputs are compared as real numbers (`FilePair`). Operators
    are not compared: `likenesses` decides, and is always measured.

    Raises:
        OptionError: the files have different numbers of inputs or outputs, or input shapes.
    """
    check_counts(num_runs=num_runs, invocations_per_run=invocations_per_run)
    pair = FilePair.of(read_model(model), read_model(against))
    inputs = inputs or InputSettings()
    pair.check_shapes(inputs.shapes)
    of = precision(pair.tested, pair.other, is_reduced=test.is_reduced)
    settings = with_usable_indices(inputs, model, reference)
    got, want = Runner("test", test.open()), reference_runner(reference, against)
    details = pair.drawn_details(got.interpreter.get_input_details(), settings.files)
    source = settings.source(details)
    random = _random(pair)
    bounds = (bounds or Bounds()).for_precision(is_reduced=of == "reduced")
    sides = Sides(got, want, _comparers(pair, bounds), random)
    for _ in tqdm(range(num_runs), "comparing", disable=None, leave=False):
        sides.run(*pair.given(source()), invocations_per_run, pair.compared)
    runs = sides.runs
    whole = EndToEnd(
        against,
        pair.other,
        reference,
        test,
        runs.arrays,
        runs.want,
        of=of,
        random=random,
        read=pair.read,
    )
    found = sides.result(model, test, reference, settings.seed)
    return dataclasses.replace(
        found,
        likenesses=whole(runs.got),
        remarks=test.remarks,
        against=name_of(against),
    )


def _comparers(pair: FilePair, bounds: Bounds) -> list[Comparer]:
    main = pair.other.subgraphs[0]
    return [
        Comparer(index, main.tensors[index].name, pair.dtype(i), bounds)
        for i, index in enumerate(main.outputs)
    ]


def _random(pair: FilePair) -> frozenset[int]:
    """The other file's outputs that depend on random numbers in one of the files."""
    ours, theirs = random_outputs(pair.tested), random_outputs(pair.other)
    tested, other = pair.tested.subgraphs[0].outputs, pair.other.subgraphs[0].outputs
    pairs = zip(pair.outputs, other, strict=True)
    return theirs | {index for position, index in pairs if tested[position] in ours}
