"""The columns of a batch: their names, and the arrays of a model's inputs, checked row by row."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import JaxDelegateError, OptionError

Batch = Mapping[str, np.ndarray]
HOW_TO_CAST = "cast it in a map_batches before this one"


class PredictionError(JaxDelegateError, ValueError):
    """The columns or rows of a batch do not fit the model, or the model failed on some of them.

    The message names the column, what was expected and what the batch has, and rows by their key.
    """


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    name: str  # the signature's, or the tensor's if the file has no signature
    index: int
    row_shape: tuple[int, ...]  # without the batch dimension; -1: any size
    dtype: np.dtype  # object: strings, as bytes


def output_columns(
    names: Mapping[str, str] | Sequence[str] | None,
    known: Collection[str],
    optional: Collection[str] = (),
) -> dict[str, str]:
    """The column of each chosen output; by default of all but the optional ones."""
    if names is None:
        return {name: name for name in known if name not in optional}
    if isinstance(names, str):
        raise OptionError(f"outputs: expected a list of names or a mapping, got the text {names!r}")
    chosen = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    check_names("output", chosen, known)
    if not chosen or len({*chosen.values()}) < len(chosen):
        raise OptionError(f"outputs: expected at least one, in different columns, got {chosen}")
    return chosen


def check_names(kind: str, names: Collection[str], known: Collection[str]) -> None:
    """An OptionError for a name that the model does not have; `kind`: "input" or "output"."""
    for name in names:
        if name not in known:
            listed = ", ".join(map(repr, known))
            raise OptionError(f"{kind}s: {name!r} is not an {kind} of the model; it has {listed}")


def num_rows(batch: Batch) -> int:
    return len(next(iter(batch.values()))) if batch else 0


def column(batch: Batch, name: str, purpose: str) -> Any:
    """An error for a missing column names the purpose."""
    if not isinstance(batch, Mapping):
        raise PredictionError(
            f'expected a batch as a dictionary of numpy arrays (batch_format="numpy"), got '
            f"{type(batch).__name__}"
        )
    if name not in batch:
        known = ", ".join(map(repr, batch)) or "none"
        raise PredictionError(f"{purpose}: there is no column {name!r}; the batch has {known}")
    return batch[name]


def to_array(value: Any, tensor: TensorInfo, name: str) -> tuple[np.ndarray, dict[int, str]]:
    """A column as the array of an input, and the rows that do not fit, with reasons.

    The column is [n, ...], or object [n] where rows differ, as in Ray Data. The array [n, ...] has
    the input's dtype, and zeros in rows that do not fit.
    """
    array, where = np.asarray(value), f"column {name!r} for input {tensor.name!r}"
    if object not in (array.dtype, tensor.dtype):
        reason = _why_not(array.dtype, array.shape[1:], tensor)
        if reason is not None:
            raise PredictionError(f"{where}, every row: {reason}")
        return array, {}
    rows = [_row(row, tensor) for row in array]
    reasons = [_why_not_row(row, tensor) for row in rows]
    wrong = {i: f"{where}: {reason}" for i, reason in enumerate(reasons) if reason is not None}
    good = {i: row for i, row in enumerate(rows) if i not in wrong}
    shapes = sorted({row.shape for row in good.values()})
    if len(shapes) > 1:
        raise PredictionError(
            f"{where}: the rows of a batch must have the same shape, got {list(shapes[0])} and "
            f"{list(shapes[1])}; resize them, or use batch_size=1"
        )
    shape = shapes[0] if shapes else tuple(max(n, 0) for n in tensor.row_shape)
    array = np.zeros((len(rows), *shape), tensor.dtype)
    for i, row in good.items():
        array[i, ...] = row  # with `...`, a row of one string is assigned as its item
    return array, wrong


def _row(value: Any, tensor: TensorInfo) -> np.ndarray:
    """One row; text as bytes where the input has strings."""
    if value is None or tensor.dtype != object:
        return np.asarray(value)
    row = np.array(value, object)
    for index, text in np.ndenumerate(row):
        row[index] = text.encode() if isinstance(text, str) else text
    return row


def _why_not_row(row: np.ndarray, tensor: TensorInfo) -> str | None:
    if row.dtype == object and row.shape == () and row.item() is None:
        return "it is null"
    if tensor.dtype == object:
        other = next((t for t in row.ravel().tolist() if not isinstance(t, bytes)), None)
        if other is not None:
            return f"expected text or bytes, got {type(other).__name__}"
    return _why_not(row.dtype, row.shape, tensor)


def _why_not(dtype: np.dtype, shape: tuple[int, ...], tensor: TensorInfo) -> str | None:
    if dtype != tensor.dtype:
        return f"expected {tensor.dtype}, got {dtype}; {HOW_TO_CAST}: astype(np.{tensor.dtype})"
    if _fits(shape, tensor.row_shape):
        return None
    sizes = ", ".join("any" if n == -1 else str(n) for n in tensor.row_shape)
    has_batch = shape[:1] == (1,) and _fits(shape[1:], tensor.row_shape)
    hint = "; remove the first dimension" if has_batch else ""
    return f"expected [{sizes}], got {list(shape)}{hint}"


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(
        size in (-1, n) for n, size in zip(shape, expected, strict=True)
    )
