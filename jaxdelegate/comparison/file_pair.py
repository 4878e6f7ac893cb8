"""Two files of one network: their inputs and outputs in pairs, and values as real numbers."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.model.records import Model, Tensor
from jaxdelegate.quant.affine import dequantize, quantize
from jaxdelegate.runtime.tensor_details import array_type, to_api_dtype
from jaxdelegate.text import printable

Ends = Literal["inputs", "outputs"]
Arrays = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class FilePair:
    """The main subgraphs of a tested file and of the one that it is compared with.

    Attributes:
        tested: the file under test.
        other: the file that has the expected results.
        inputs: for each input of `other`, the position of the tested file's.
        outputs: for each output of `other`, the position of the tested file's.
    """

    tested: Model
    other: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, tested: Model, other: Model) -> "FilePair":
        """Pair by the tensors' names, else by the signatures' names, else by order.

        Raises:
            OptionError: the files have different numbers of inputs or outputs.
        """
        inputs, outputs = _paired(tested, other, "inputs"), _paired(tested, other, "outputs")
        return cls(tested, other, inputs, outputs)

    def check_shapes(self, given: Collection[str]) -> None:
        """Check that inputs take the same shapes, but those whose shape the user gives, by name.

        Raises:
            OptionError: the shapes of an input differ.
        """
        for _, ours, theirs in self._input_pairs():
            a, b = (t.shape_signature or t.shape for t in (ours, theirs))
            fits = len(a) == len(b) and all(
                n == m or -1 in (n, m) for n, m in zip(a, b, strict=True)
            )
            if not fits and ours.name not in given:
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
        for position, ours, theirs in self._input_pairs():
            detail = drawn[position]
            if ours.dtype.kind == "f" and theirs.dtype.kind in "iu" and ours.name not in files:
                detail["dtype"] = array_type(theirs)
        return drawn

    def given(self, drawn: Arrays) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The inputs of the tested and of the other file, from arrays of `drawn_details`.

        Both have the same real values, as far as the other file's scales can represent them.
        """
        tested, other = list(drawn), []
        for position, ours, theirs in self._input_pairs():
            array = drawn[position]
            is_ours = array.dtype == np.dtype(array_type(ours))
            taken = _stored(theirs, _real(ours, array)) if is_ours else array
            other.append(array if is_ours and _are_alike(ours, theirs) else taken)
            if ours.dtype.kind == "f" and theirs.spec().is_quantized:
                tested[position] = _real(theirs, taken).astype(array_type(ours))
            elif not is_ours:
                tested[position] = array.astype(array_type(ours))
        return tested, other

    def compared(self, got: Arrays, want: Arrays) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Outputs of the tested and of the other file as real numbers, in the other's order."""
        ours = [self._as_compared(i, t, got[p]) for i, (p, t, _) in enumerate(self._output_pairs())]
        return ours, self.read(want)

    def read(self, want: Arrays) -> list[np.ndarray]:
        """The other file's outputs as `compared` gives them."""
        theirs = enumerate(zip(self._output_pairs(), want, strict=True))
        return [self._as_compared(i, tensor, array) for i, ((_, _, tensor), array) in theirs]

    def _as_compared(self, output: int, tensor: Tensor, array: np.ndarray) -> np.ndarray:
        real, dtype = _real(tensor, array), self.dtype(output)
        return real if real.dtype.hasobject else real.astype(dtype, copy=False)

    def dtype(self, output: int) -> np.dtype:
        """The dtype in which an output of `other` is compared."""
        _, ours, theirs = list(self._output_pairs())[output]
        return _common_dtype(_real_dtype(ours), _real_dtype(theirs))

    def _output_pairs(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        return self._pairs(self.outputs, "outputs")

    def _input_pairs(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        return self._pairs(self.inputs, "inputs")

    def _pairs(self, positions: Sequence[int], ends: Ends) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each of the other file's: the tested file's position, and both tensors."""
        ours, theirs = _tensors(self.tested, ends), _tensors(self.other, ends)
        for position, tensor in zip(positions, theirs, strict=True):
            yield position, ours[position], tensor


def _tensors(model: Model, ends: Ends) -> list[Tensor]:
    main = model.subgraphs[0]
    return [main.tensors[i] for i in getattr(main, ends)]


def _paired(tested: Model, other: Model, ends: Ends) -> tuple[int, ...]:
    ours, theirs = _tensors(tested, ends), _tensors(other, ends)
    for names, wanted in zip(_namings(tested, ends), _namings(other, ends), strict=True):
        is_complete = len({*names}) == len(ours) and len(wanted) == len(theirs)
        if is_complete and sorted(names) == sorted(wanted):
            return tuple(names.index(name) for name in wanted)
    if len(ours) != len(theirs):
        listed = (", ".join(repr(t.name) for t in tensors) or "none" for tensors in (ours, theirs))
        raise OptionError(
            "against: the files have different {}: {} and {}; expected the same names, or as many "
            "in the same order".format(ends, *map(printable, listed))
        )
    return tuple(range(len(ours)))


def _namings(model: Model, ends: Ends) -> tuple[list[str], list[str]]:
    """The names of a file's tensors, and those in its only signature of the main subgraph."""
    main = model.subgraphs[0]
    signatures = [s for s in model.signatures if s.subgraph == 0]
    by_index = {i: name for s in signatures for name, i in getattr(s, ends).items()}
    is_named = len(signatures) == 1 and {*by_index} == {*getattr(main, ends)}
    named = [by_index[i] for i in getattr(main, ends)] if is_named else []
    return [tensor.name for tensor in _tensors(model, ends)], named


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether the same stored values are the same real numbers."""
    a, b = one.spec(), other.spec()
    if a.dtype != b.dtype or a.is_quantized != b.is_quantized:
        return False
    p, q = a.quantization, b.quantization
    if not a.is_quantized or p is None or q is None:
        return True
    return bool(np.array_equal(p.scale, q.scale) and np.array_equal(p.zero_point, q.zero_point))


def _real(tensor: Tensor, array: np.ndarray) -> np.ndarray:
    """What an interpreter's array means: float32 if the tensor is quantized, else the array."""
    spec = tensor.spec()
    if not spec.is_quantized or spec.quantization is None:
        return array
    return dequantize(array, spec.quantization)


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


def _common_dtype(one: np.dtype, other: np.dtype) -> np.dtype:
    if one == other or {one.kind, other.kind} & set("OSU"):
        return other
    return np.promote_types(one, other)
