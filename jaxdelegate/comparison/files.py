"""Compares two files of one network on the same inputs, as real numbers.

They are float and quantized, for example, or before and after a save.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxdelegate.comparison.bounds import Bounds, precision
from jaxdelegate.comparison.diff import InferenceDiff, Sides, name_of
from jaxdelegate.comparison.inputs import InputSettings, with_usable_indices
from jaxdelegate.comparison.metrics import Comparer, real_values
from jaxdelegate.comparison.random_numbers import random_outputs
from jaxdelegate.comparison.sides import Arrays, ModelPath, Reference, Runner, Test
from jaxdelegate.comparison.verdict import EndToEnd, Runs
from jaxdelegate.errors import OptionError, check_least
from jaxdelegate.model.records import Model, Tensor, read_model
from jaxdelegate.quant.affine import quantize
from jaxdelegate.runtime.tensor_details import array_type, to_api_dtype
from jaxdelegate.text import printable

Ends = Literal["inputs", "outputs"]


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
    check_least(1, num_runs=num_runs, invocations_per_run=invocations_per_run)
    pair = FilePair.of(read_model(model), read_model(against))
    inputs = inputs or InputSettings()
    pair.check_shapes(inputs.shapes)
    of = precision(pair.tested, pair.other, is_reduced=test.is_reduced)
    settings = with_usable_indices(inputs, model, reference)
    side = Reference(reference, against, pair.other_inputs, pair.other_outputs)
    got = Runner("test", test.open(), pair.tested_inputs, pair.tested_outputs)
    details = pair.drawn_details(got.interpreter.get_input_details(), settings.files)
    bounds = (bounds or Bounds()).for_precision(is_reduced=of == "reduced")
    runs = Runs(pair.comparers(bounds), pair.random())
    both = Sides(test, got, side.runner(), runs)
    both.run(settings.source(details), num_runs, invocations_per_run)
    return dataclasses.replace(
        both.result(model, reference, settings.seed),
        likenesses=EndToEnd(pair.other, test, side, runs, of)(),
        remarks=test.remarks,
        against=name_of(against),
    )


class Pair(NamedTuple):
    position: int  # the tested file's
    ours: Tensor  # the tested file's
    theirs: Tensor  # has the expected results

    @property
    def dtype(self) -> np.dtype:
        """The dtype in which the real values of both are compared."""
        one, other = _real_dtype(self.ours), _real_dtype(self.theirs)
        if one == other or {one.kind, other.kind} & set("OSU"):
            return other
        return np.promote_types(one, other)

    def stored(self, array: np.ndarray) -> np.ndarray:
        """A drawn array as the other file's tensor has it."""
        is_theirs = array.dtype != np.dtype(array_type(self.ours)) or self._are_alike
        return array if is_theirs else _stored(self.theirs, real_values(self.ours, array))

    @property
    def _are_alike(self) -> bool:
        """Whether the same stored values are the same real numbers."""
        a, b = self.ours.spec(), self.theirs.spec()
        if a.dtype != b.dtype or a.is_quantized != b.is_quantized:
            return False
        p, q = a.quantization, b.quantization
        if not a.is_quantized or p is None or q is None:
            return True
        return bool(np.array_equal(p.scale, q.scale) and np.array_equal(p.zero_point, q.zero_point))


@dataclasses.dataclass(frozen=True)
class FilePair:
    """The main subgraphs of a tested file and of the one that it is compared with."""

    tested: Model
    other: Model  # has the expected results
    inputs: tuple[Pair, ...]  # in the order of `other`
    outputs: tuple[Pair, ...]

    @classmethod
    def of(cls, tested: Model, other: Model) -> "FilePair":
        """Pair by the tensors' names, else the signatures', else by order; else an OptionError."""
        inputs, outputs = _paired(tested, other, "inputs"), _paired(tested, other, "outputs")
        return cls(tested, other, inputs, outputs)

    def check_shapes(self, resized: Collection[str]) -> None:
        """An OptionError if the shapes of an input differ that the user does not resize."""
        for _, ours, theirs in self.inputs:
            a, b = (t.shape_signature or t.shape for t in (ours, theirs))
            fits = len(a) == len(b) and all(
                n == m or -1 in (n, m) for n, m in zip(a, b, strict=True)
            )
            if not fits and ours.name not in resized:
                raise OptionError(
                    f"against: input {ours.name!r} has the shape {list(a)}, but {theirs.name!r} of "
                    f"the other file has {list(b)}; give both a shape with --input_layer="
                    f"{printable(ours.name)} and --input_layer_shape, or compare files of one "
                    "network"
                )

    def drawn_details(
        self, details: Sequence[Mapping[str, Any]], files: Collection[str]
    ) -> list[dict[str, Any]]:
        """The tested file's `get_input_details()`, with the dtypes in which to draw its inputs.

        If the tested file takes floats where the other takes integers, integers are drawn: both
        files can represent them. Values from `files`, by input name, have the tested file's dtype.
        """
        drawn = [dict(detail) for detail in details]
        for position, ours, theirs in self.inputs:
            detail = drawn[position]
            if ours.dtype.kind == "f" and theirs.dtype.kind in "iu" and ours.name not in files:
                detail["dtype"] = array_type(theirs)
        return drawn

    def tested_inputs(self, drawn: Arrays) -> list[np.ndarray]:
        """The tested file's inputs, from arrays of `drawn_details`.

        Both files have the same real values, as far as the other's scales can represent them.
        """
        tested = list(drawn)
        for pair in self.inputs:
            array, dtype = drawn[pair.position], np.dtype(array_type(pair.ours))
            if pair.ours.dtype.kind == "f" and pair.theirs.spec().is_quantized:
                real = real_values(pair.theirs, pair.stored(array))
                tested[pair.position] = real.astype(dtype)
            elif array.dtype != dtype:
                tested[pair.position] = array.astype(dtype)
        return tested

    def other_inputs(self, drawn: Arrays) -> list[np.ndarray]:
        return [pair.stored(drawn[pair.position]) for pair in self.inputs]

    def tested_outputs(self, got: Arrays) -> list[np.ndarray]:
        """The tested file's outputs as real numbers, in the other's order."""
        return [_as(p.dtype, real_values(p.ours, got[p.position])) for p in self.outputs]

    def other_outputs(self, want: Arrays) -> list[np.ndarray]:
        pairs = zip(self.outputs, want, strict=True)
        return [_as(p.dtype, real_values(p.theirs, array)) for p, array in pairs]

    def comparers(self, bounds: Bounds) -> list[Comparer]:
        return [Comparer(p.theirs.index, p.theirs.name, p.dtype, bounds) for p in self.outputs]

    def random(self) -> frozenset[int]:
        """The outputs of `other` that depend on random numbers in one of the files."""
        ours, theirs = random_outputs(self.tested), random_outputs(self.other)
        return theirs | {p.theirs.index for p in self.outputs if p.ours.index in ours}


def _tensors(model: Model, ends: Ends) -> list[Tensor]:
    main = model.subgraphs[0]
    return [main.tensors[i] for i in getattr(main, ends)]


def _paired(tested: Model, other: Model, ends: Ends) -> tuple[Pair, ...]:
    positions = _positions(tested, other, ends)
    ours, theirs = _tensors(tested, ends), _tensors(other, ends)
    return tuple(Pair(i, ours[i], tensor) for i, tensor in zip(positions, theirs, strict=True))


def _positions(tested: Model, other: Model, ends: Ends) -> Sequence[int]:
    ours, theirs = _tensors(tested, ends), _tensors(other, ends)
    for names, wanted in zip(_namings(tested, ends), _namings(other, ends), strict=True):
        is_complete = len({*names}) == len(ours) and len(wanted) == len(theirs)
        if is_complete and sorted(names) == sorted(wanted):
            return [names.index(name) for name in wanted]
    if len(ours) != len(theirs):
        listed = (", ".join(repr(t.name) for t in tensors) or "none" for tensors in (ours, theirs))
        raise OptionError(
            "against: the files have different {}: {} and {}; expected the same names, or as many "
            "in the same order".format(ends, *map(printable, listed))
        )
    return range(len(ours))


def _namings(model: Model, ends: Ends) -> tuple[list[str], list[str]]:
    """The names of a file's tensors, and those in its only signature of the main subgraph."""
    main = model.subgraphs[0]
    signatures = [s for s in model.signatures if s.subgraph == 0]
    by_index = {i: name for s in signatures for name, i in getattr(s, ends).items()}
    is_named = len(signatures) == 1 and {*by_index} == {*getattr(main, ends)}
    named = [by_index[i] for i in getattr(main, ends)] if is_named else []
    return [tensor.name for tensor in _tensors(model, ends)], named


def _stored(tensor: Tensor, real: np.ndarray) -> np.ndarray:
    """An interpreter's array for real numbers: the nearest that the tensor can have."""
    spec = tensor.spec()
    if spec.is_quantized and spec.quantization is not None:
        values = real.astype(np.float32)
        return to_api_dtype(tensor, quantize(values, spec.quantization, tensor.dtype))
    if tensor.dtype.kind in "iu" and real.dtype.kind == "f":
        info = np.iinfo(tensor.dtype)
        return np.rint(real.astype(np.float64)).clip(info.min, info.max).astype(tensor.dtype)
    return real if real.dtype.hasobject else real.astype(array_type(tensor))


def _real_dtype(tensor: Tensor) -> np.dtype:
    return np.dtype(np.float32) if tensor.spec().is_quantized else np.dtype(array_type(tensor))


def _as(dtype: np.dtype, real: np.ndarray) -> np.ndarray:
    return real if real.dtype.hasobject else real.astype(dtype, copy=False)
