"""From the columns of a batch to the arrays of a model's inputs, with every row checked."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.ray.errors import PredictionError
from jaxdelegate.ray.signature import End

Batch = Mapping[str, np.ndarray]
_HOW_TO_CAST = "cast it in a map_batches before this one"


def num_rows(batch: Batch) -> int:
    """How many rows a batch has."""
    return len(next(iter(batch.values()))) if batch else 0


def column(batch: Batch, name: str, what: str) -> Any:
    """A column.

    Args:
        batch: the columns by name.
        name: of the column.
        what: it is for, for the error.

    Raises:
        PredictionError: it is not there; names those that are.
    """
    if not isinstance(batch, Mapping):
        raise PredictionError(
            f'want a batch as a dictionary of numpy arrays (batch_format="numpy"), got '
            f"{type(batch).__name__}"
        )
    if name not in batch:
        there = ", ".join(map(repr, batch)) or "none"
        raise PredictionError(f"{what}: there is no column {name!r}; the batch has {there}")
    return batch[name]


def taken(
    value: Any, end: End, row_shape: tuple[int, ...], name: str
) -> tuple[np.ndarray, dict[int, str]]:
    """A column's rows as one array, and the rows that do not fit.

    Args:
        value: the column, [n, ...]; object [n] where rows differ, as Ray Data has it.
        end: the input.
        row_shape: that the model wants of a row, -1 where it takes any size.
        name: of the column.

    Returns:
        The array [n, ...] of the input's dtype, zeros in rows that do not fit; and for each of
        those what is wrong.

    Raises:
        PredictionError: no row can fit: the column has another dtype or shape, or rows whose shapes
            the model takes, but which are of different ones.
    """
    array = np.asarray(value)
    where = f"column {name!r} for input {end.name!r}"
    if object in (array.dtype, end.dtype):
        return _of_rows(list(array), end, row_shape, where)
    if array.dtype != end.dtype:
        raise PredictionError(
            f"{where}: want {end.dtype}, got {array.dtype}; {_HOW_TO_CAST}: "
            f"{name}.astype(np.{end.dtype})"
        )
    if not _fits(array.shape[1:], row_shape):
        raise PredictionError(
            f"{where}: want rows of {_text(row_shape)}, got rows of {list(array.shape[1:])}"
            f"{_with_batch(array.shape[1:], row_shape)}"
        )
    return array, {}


def _of_rows(
    values: Sequence[Any], end: End, row_shape: tuple[int, ...], where: str
) -> tuple[np.ndarray, dict[int, str]]:
    rows = [_row(value, end) for value in values]
    wrong: dict[int, str] = {}
    for i, row in enumerate(rows):
        reason = _why_not(row, end, row_shape)
        if reason is not None:
            wrong[i] = f"{where}: {reason}"
    good = {row.shape for i, row in enumerate(rows) if i not in wrong}
    if len(good) > 1:
        some = " and ".join(str(list(shape)) for shape in sorted(good)[:2])
        raise PredictionError(
            f"{where}: the rows of a batch have to be of one shape, got {some}; bring them to one, "
            "or use batch_size=1"
        )
    shape = next(iter(good), tuple(max(n, 0) for n in row_shape))
    array = np.zeros((len(rows), *shape), end.dtype)
    for i, row in enumerate(rows):
        if i not in wrong:
            array[i, ...] = row  # else a row of one string stays an array of it
    return array, wrong


def _row(value: Any, end: End) -> np.ndarray:
    """One row; text as bytes where the input has strings."""
    if value is None:
        return np.array(None, object)
    if end.dtype != object:
        return np.asarray(value)
    flat = np.asarray(value, object)
    texts = [t.encode() if isinstance(t, str) else t for t in flat.ravel().tolist()]
    return np.array([*texts, None], object)[:-1].reshape(flat.shape)


def _why_not(row: np.ndarray, end: End, row_shape: tuple[int, ...]) -> str | None:
    if row.dtype == object and row.shape == () and row.item() is None:
        return "it is null"
    if end.dtype == object:
        other = next((t for t in row.ravel().tolist() if not isinstance(t, bytes)), None)
        if other is not None:
            return f"want text or bytes, got {type(other).__name__}"
    elif row.dtype != end.dtype:
        return f"want {end.dtype}, got {row.dtype}"
    if not _fits(row.shape, row_shape):
        return f"want {_text(row_shape)}, got {list(row.shape)}{_with_batch(row.shape, row_shape)}"
    return None


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        w in (-1, n) for n, w in zip(shape, wanted, strict=True)
    )


def _text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('any' if n == -1 else str(n) for n in shape)}]"


def _with_batch(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Advice for rows that bring a batch dimension of their own."""
    return (
        "; leave out the first dimension" if shape[:1] == (1,) and _fits(shape[1:], wanted) else ""
    )
