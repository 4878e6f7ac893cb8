"""Where the bytes of a file are, as the official schema's accessors read its buffers."""

import contextlib
import struct
from collections.abc import Iterator

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.analysis.records import Sizes
from jaxdelegate.model.records import Model


def measure(model: Model) -> Sizes:
    stored = list(_buffers(model))
    used = _used_buffers(model)
    external = [
        t.stored.nbytes
        for s in model.subgraphs
        for t in s.tensors
        if t.stored is not None and t.buffer == 0
    ]
    return Sizes(
        file=model.nbytes,
        buffers=sum(data.size for _, data in stored),
        zero_buffers=sum(data.size for _, data in stored if data.size and not data.any()),
        unused_buffers=sum(data.size for index, data in stored if index not in used),
        metadata=sum(len(data) for data in model.metadata.values()),
        external=sum(external),
        subgraphs=tuple(
            sum({t.buffer: t.stored.nbytes for t in s.tensors if t.stored is not None}.values())
            for s in model.subgraphs
        ),
    )


def _used_buffers(model: Model) -> frozenset[int]:
    table = schema.Model.GetRootAs(model.content)
    used = {t.buffer for subgraph in model.subgraphs for t in subgraph.tensors}
    used |= {table.Metadata(i).Buffer() for i in range(table.MetadataLength())}
    used |= {table.MetadataBuffer(i) for i in range(table.MetadataBufferLength())}
    return frozenset(used)


def _buffers(model: Model) -> Iterator[tuple[int, np.ndarray]]:
    """The bytes of every buffer, uint8 [n], by its index, also of those after the flatbuffer."""
    table = schema.Model.GetRootAs(model.content)
    content = np.frombuffer(model.content, np.uint8)
    for index in range(table.BuffersLength()):
        # A buffer that nothing refers to may be damaged.
        with contextlib.suppress(struct.error, ValueError, TypeError):
            buffer = table.Buffers(index)
            data = buffer.DataAsNumpy()
            if not isinstance(data, np.ndarray):
                data = content[buffer.Offset() : buffer.Offset() + buffer.Size()]
            yield index, data
