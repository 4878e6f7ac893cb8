"""Writes what a file says of its tensors: metadata_schema.fbs and an archive behind the model."""

import dataclasses
import io
import zipfile
from collections.abc import Mapping, Sequence

import flatbuffers
import numpy as np

NAME = "TFLITE_METADATA"
IMAGE, FEATURE = 2, 1
AXIS_LABELS, VOCABULARY = 2, 5


@dataclasses.dataclass(frozen=True)
class Described:
    name: str
    content: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    files: Mapping[str, int] = dataclasses.field(default_factory=dict)  # AssociatedFileType by name


def metadata(inputs: Sequence[Described], outputs: Sequence[Described]) -> bytes:
    """The flatbuffer, whose fields have the numbers of the schema."""
    b = flatbuffers.Builder()

    def table(**fields: tuple[int, str, int]) -> int:
        b.StartObject(max(n for n, _, _ in fields.values()) + 1)
        for slot, kind, value in fields.values():
            if kind == "offset":
                b.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                b.PrependUint8Slot(slot, value, 0)
        return int(b.EndObject())

    def vector(offsets: Sequence[int]) -> int:
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return int(b.EndVector())

    def tensor(d: Described) -> int:
        content = table(type=(0, "byte", d.content))
        files = [
            table(name=(0, "offset", b.CreateString(name)), type=(2, "byte", kind))
            for name, kind in d.files.items()
        ]
        units = []
        if d.mean:
            mean, std = (b.CreateNumpyVector(np.array(v, np.float32)) for v in (d.mean, d.std))
            options = table(mean=(0, "offset", mean), std=(1, "offset", std))
            units = [table(type=(0, "byte", 1), options=(1, "offset", options))]
        return table(
            name=(0, "offset", b.CreateString(d.name)),
            content=(3, "offset", content),
            units=(4, "offset", vector(units)),
            files=(6, "offset", vector(files)),
        )

    described = [vector([tensor(d) for d in tensors]) for tensors in (inputs, outputs)]
    subgraph = table(inputs=(2, "offset", described[0]), outputs=(3, "offset", described[1]))
    root = table(
        name=(0, "offset", b.CreateString("a classifier")),
        subgraphs=(3, "offset", vector([subgraph])),
        author=(4, "offset", b.CreateString("someone")),
    )
    b.Finish(root, b"M001")
    return bytes(b.Output())


def with_archive(model: bytes, files: Mapping[str, str]) -> bytes:
    """The model with a ZIP archive behind it."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in files.items():
            file.writestr(name, text)
    return model + archive.getvalue()
