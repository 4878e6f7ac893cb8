"""Replaces data and scales in a file's content; all other bytes stay the same.

New values are written in place. A tensor that shares its bytes with tensors that do not change gets
its own buffer at the front of the file: see `front`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.model import front
from jaxdelegate.model.buffers import Buffers, ExternalBuffers
from jaxdelegate.model.flatbuffer import UINT32, Flatbuffer
from jaxdelegate.model.layout import LAYOUT
from jaxdelegate.model.records import Model, Tensor, read_model
from jaxdelegate.model.source import Source
from jaxdelegate.text import printable

Place = tuple[int, int]  # subgraph, tensor
_MODEL_FILE = ""  # the model's own file among the files with data
_NUMBERS = {"scale": "<f4", "zero_point": "<i8", "min": "<f4", "max": "<f4"}


@dataclasses.dataclass(frozen=True)
class Edited:
    content: bytes | memoryview  # of the model's file
    groups: Mapping[str, bytes]  # of the files next to it that change, by name


@dataclasses.dataclass(frozen=True)
class _Span:
    file: str
    start: int
    size: int


def edited(
    model: Model,
    data: Mapping[Place, np.ndarray],
    numbers: Mapping[Place, Mapping[str, np.ndarray]],
) -> Edited:
    """The model's file with other values.

    The files must not have changed since the model was read. `data` has new bytes of constant
    tensors, uint8 [n], `numbers` has "scale" (float32), "zero_point" (int64), "min" and "max" of
    tensors' quantization, both with the lengths in the file. A ModelError if what changes is shared
    with what does not, and cannot be separated.
    """
    data = {place: new for place, new in data.items() if _differs(model, place, new)}
    if not data and not any(numbers.values()):
        return Edited(model.content, {})
    editor = _Editor(model)
    editor.write_numbers(numbers)
    editor.write_data(data)
    result = editor.result()
    _confirm(model, result, data, numbers)
    return result


def read_again(model: Model, content: bytes | memoryview) -> Model:
    """Other content, as if it were in the model's file."""
    return read_model(Source(model.source, memoryview(content), model.origin.folder))


def _differs(model: Model, place: Place, new: np.ndarray) -> bool:
    subgraph, tensor = place
    stored = model.subgraphs[subgraph].tensors[tensor].stored
    assert stored is not None
    return not np.array_equal(stored[: new.size], new)


class _Editor:
    """A copy of a model's files, and the offsets of its parts."""

    def __init__(self, model: Model) -> None:
        self._model = model
        file = Flatbuffer(model.content, model.source, LAYOUT)
        self._root = root = file.root("Model")
        self._buffer_tables = root.tables("buffers", "Buffer")
        self._buffers = Buffers(file, self._buffer_tables)
        self._external = ExternalBuffers(root, model.origin)
        self._subgraphs = root.tables("subgraphs", "SubGraph")
        self._tensors = [table.tables("tensors", "Tensor") for table in self._subgraphs]
        self._content = bytearray(model.content)
        self._groups: dict[str, bytearray] = {}
        self._added: list[np.ndarray] = []

    def result(self) -> Edited:
        content = bytes(self._content)
        if self._added:
            content = front.with_buffers(
                content, self._root, self._buffer_tables, self._subgraphs, self._added
            )
        return Edited(content, {name: bytes(group) for name, group in self._groups.items()})

    def write_numbers(self, numbers: Mapping[Place, Mapping[str, np.ndarray]]) -> None:
        for (subgraph, tensor), fields in numbers.items():
            if not fields:
                continue
            table = self._tensors[subgraph][tensor].table("quantization", "QuantizationParameters")
            assert table is not None
            for field, values in fields.items():
                new = np.ascontiguousarray(values, _NUMBERS[field])
                span = table.span(field, new.itemsize)
                if span is None or span[1] != new.size:
                    rule = f"must keep its {0 if span is None else span[1]} values"
                    table.fail(field, rule, f"{new.size}")
                self._content[span[0] : span[0] + new.nbytes] = new.tobytes()

    def write_data(self, data: Mapping[Place, np.ndarray]) -> None:
        spans = {place: span for place, span in self._spans() if span.size}
        for subgraph, index in data.keys() - spans.keys():
            rule = "must hold data to be changed"
            self._tensors[subgraph][index].fail(
                "buffer", rule, "none: the file has no values for it"
            )
        kept = [span for span in self._metadata() if span.size]
        for readers, is_whole in _overlapping(spans, kept):
            new = {place: data[place] for place in readers if place in data}
            if not new:
                continue
            distinct = {values.tobytes() for values in new.values()}
            if is_whole and len(new) == len(readers) and len(distinct) == 1:
                self._overwrite(spans[readers[0]], distinct.pop())
            else:
                self._separate(new, spans)

    def _overwrite(self, span: _Span, values: bytes) -> None:
        if span.file == _MODEL_FILE:
            self._content[span.start : span.start + len(values)] = values
            return
        if span.file not in self._groups:
            folder = self._model.origin.folder
            assert folder is not None
            self._groups[span.file] = bytearray(folder.content(span.file))
        self._groups[span.file][span.start : span.start + len(values)] = values

    def _separate(self, new: Mapping[Place, np.ndarray], spans: Mapping[Place, _Span]) -> None:
        """Tensors with the same bytes share a new buffer."""
        indices: dict[bytes, int] = {}
        for (subgraph, index), values in new.items():
            tensor = self._tensors[subgraph][index]
            if spans[subgraph, index].file != _MODEL_FILE:
                rule = "tensors that share an external buffer must all get the same values"
                tensor.fail("external_buffer", rule, "others for some of them")
            key = values.tobytes()
            if key not in indices:
                indices[key] = len(self._buffer_tables) + len(self._added)
                self._added.append(values)
            UINT32.pack_into(self._content, tensor.place("buffer"), indices[key])

    def _spans(self) -> Iterator[tuple[Place, _Span]]:
        for subgraph, tables in enumerate(self._tensors):
            for index, table in enumerate(tables):
                span = self._buffers.span(table.scalar("buffer", UINT32))
                external = self._external.span(table)
                if span is not None:
                    yield (subgraph, index), _Span(_MODEL_FILE, *span)
                elif external is not None:
                    yield (subgraph, index), _Span(*external)

    def _metadata(self) -> Iterator[_Span]:
        entries = self._root.tables("metadata", "Metadata")
        indices = {table.scalar("buffer", UINT32) for table in entries}
        for index in indices.union(self._root.integers("metadata_buffer")):
            span = self._buffers.span(index)
            if span is not None:
                yield _Span(_MODEL_FILE, *span)


def _overlapping(
    spans: Mapping[Place, _Span], kept: Iterable[_Span]
) -> Iterator[tuple[list[Place], bool]]:
    """Groups of tensors whose bytes overlap, and whether the group has one span and is alone."""
    items: list[tuple[_Span, Place | None]] = [(span, place) for place, span in spans.items()]
    items += [(span, None) for span in kept]
    items.sort(key=lambda item: (item[0].file, item[0].start, item[0].size))
    cluster: list[tuple[_Span, Place | None]] = []
    end = 0
    for span, place in items:
        if cluster and (span.file != cluster[0][0].file or span.start >= end):
            yield _cluster(cluster)
            cluster, end = [], 0
        cluster.append((span, place))
        end = max(end, span.start + span.size)
    if cluster:
        yield _cluster(cluster)


def _cluster(items: Sequence[tuple[_Span, Place | None]]) -> tuple[list[Place], bool]:
    places = [place for _, place in items if place is not None]
    return places, len(places) == len(items) and len({span for span, _ in items}) == 1


def _confirm(
    model: Model,
    result: Edited,
    data: Mapping[Place, np.ndarray],
    numbers: Mapping[Place, Mapping[str, np.ndarray]],
) -> None:
    """Check in the new content that exactly the requested values have changed."""
    again = read_again(model, result.content)
    for subgraph in model.subgraphs:
        for old in subgraph.tensors:
            place = subgraph.index, old.index
            new = again.subgraphs[subgraph.index].tensors[old.index]
            expected = data.get(place, old.stored) if new.buffer else new.stored
            if not _same_data(expected, new) or not _same_numbers(old, new, numbers.get(place, {})):
                raise ModelError(
                    f"{printable(model.source)}: tensor {old.name!r} shares its table, its scales "
                    "or its data with a tensor that changes, and they cannot be separated; change "
                    "both"
                )


def _same_data(expected: np.ndarray | None, new: Tensor) -> bool:
    if expected is None or new.stored is None:
        return expected is new.stored
    return np.array_equal(expected, new.stored[: expected.size])


def _same_numbers(old: Tensor, new: Tensor, changed: Mapping[str, np.ndarray]) -> bool:
    before, after = old.quantization, new.quantization
    if before is None or after is None:
        return before is after
    expected = changed.get("scale", before.scale), changed.get("zero_point", before.zero_point)
    found = after.scale, after.zero_point
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(expected, found, strict=True))
