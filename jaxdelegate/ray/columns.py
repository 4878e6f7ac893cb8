"""Converts the columns of a batch to the arrays of a model's inputs, and checks every row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.ray.errors import PredictionError
from jaxdelegate.ray.signature import TensorInfo

Batch = Mapping[str, np.ndarray]
HOW_TO_CAST = "cast it in a map_batches before this one"


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


def to_array(
    value: Any, tensor: TensorInfo, row_shape: tuple[int, ...], name: str
) -> tuple[np.ndarray, dict[int, str]]:
    """A column as the array of an input, and the rows that do not fit, with reasons.

    The column is [n, ...], or object [n] where rows differ, as in Ray Data; -1 in `row_shape` is
    any size. The array [n, ...] has the input's dtype, and zeros in rows that do not fit.
    """
    array = np.asarray(value)
    where = f"column {name!r} for input {tensor.name!r}"
    if object in (array.dtype, tensor.dtype):
        return _stack(list(array), tensor, row_shape, where)
    if array.dtype != tensor.dtype:
        raise PredictionError(
            f"{where}: expected {tensor.dtype}, got {array.dtype}; {HOW_TO_CAST}: "
            f"{name}.astype(np.{tensor.dtype})"
        )
    if not _fits(array.shape[1:], row_shape):
        raise PredictionError(
            f"{where}: expected rows of {_text(row_shape)}, got rows of {list(array.shape[1:])}"
            f"{_batch_hint(array.shape[1:], row_shape)}"
        )
    return array, {}


def _stack(
    values: Sequence[Any], tensor: TensorInfo, row_shape: tuple[int, ...], where: str
) -> tuple[np.ndarray, dict[int, str]]:
    rows = [_row(value, tensor) for value in values]
    wrong: dict[int, str] = {}
    for i, row in enumerate(rows):
        reason = _why_not(row, tensor, row_shape)
        if reason is not None:
            wrong[i] = f"{where}: {reason}"
    shapes = {row.shape for i, row in enumerate(rows) if i not in wrong}
    if len(shapes) > 1:
        some = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
        raise PredictionError(
            f"{where}: the rows of a batch must have the same shape, got {some}; resize them, "
            "or use batch_size=1"
        )
    shape = next(iter(shapes), tuple(max(n, 0) for n in row_shape))
    array = np.zeros((len(rows), *shape), tensor.dtype)
    for i, row in enumerate(rows):
        if i not in wrong:
            array[i, ...] = row  # with `...`, a row of one string is assigned as its item
    return array, wrong


def _row(value: Any, tensor: TensorInfo) -> np.ndarray:
    """One row; text as bytes where the input has strings."""
    if value is None:
        return np.array(None, object)
    if tensor.dtype != object:
        return np.asarray(value)
    flat = np.asarray(value, object)
    texts = [t.encode() if isinstance(t, str) else t for t in flat.ravel().tolist()]
    return np.array([*texts, None], object)[:-1].reshape(flat.shape)


def _why_not(row: np.ndarray, tensor: TensorInfo, row_shape: tuple[int, ...]) -> str | None:
    if row.dtype == object and row.shape == () and row.item() is None:
        return "it is null"
    if tensor.dtype == object:
        other = next((t for t in row.ravel().tolist() if not isinstance(t, bytes)), None)
        if other is not None:
            return f"expected text or bytes, got {type(other).__name__}"
    elif row.dtype != tensor.dtype:
        return f"expected {tensor.dtype}, got {row.dtype}"
    if not _fits(row.shape, row_shape):
        hint = _batch_hint(row.shape, row_shape)
        return f"expected {_text(row_shape)}, got {list(row.shape)}{hint}"
    return None


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(
        size in (-1, n) for n, size in zip(shape, expected, strict=True)
    )


def _text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('any' if n == -1 else str(n) for n in shape)}]"


def _batch_hint(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    has_batch = shape[:1] == (1,) and _fits(shape[1:], expected)
    return "; remove the first dimension" if has_batch else ""
