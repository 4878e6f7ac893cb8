"""What a file says of its inputs and outputs: normalization, labels, in words.

Format: metadata_schema.fbs of TFLite Support. The tables are a flatbuffer in the model's metadata
"TFLITE_METADATA"; label files and vocabularies are a ZIP archive behind the model.
"""

import dataclasses
import logging
import zipfile
from collections.abc import Mapping

from jaxdelegate.errors import ModelError
from jaxdelegate.model import archive
from jaxdelegate.model.flatbuffer import UINT8, Flatbuffer, Table, layout
from jaxdelegate.model.records import Model
from jaxdelegate.text import printable

_LOGGER = logging.getLogger("jaxdelegate")

_NAME, _IDENTIFIER = "TFLITE_METADATA", b"M001"
_LAYOUT = layout(
    {
        "ModelMetadata": "name description version subgraph_metadata author license",
        "SubGraphMetadata": "name description input_tensor_metadata output_tensor_metadata",
        "TensorMetadata": "name description dimension_names content process_units stats "
        "associated_files",
        "Content": "content_properties_type",
        "ProcessUnit": "options_type options",
        "NormalizationOptions": "mean std",
        "AssociatedFile": "name description type locale",
    }
)
_CONTENTS = {1: "feature", 2: "image", 3: "bounding box", 4: "audio"}
_NORMALIZATION = 1  # of ProcessUnitOptions
_LABELS = (2, 3)  # of AssociatedFileType: names of an axis's elements, or of values
_MOST_LABEL_BYTES = 1 << 20  # of all label files together


@dataclasses.dataclass(frozen=True)
class Normalization:
    """(value - mean) / std, for each channel or for all."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class TensorDescription:
    name: str
    description: str
    content: str  # "image", "feature", "bounding box", "audio", or "": unknown
    normalization: Normalization | None
    files: tuple[str, ...]  # the names of its files in the archive
    labels: tuple[str, ...]  # names of an axis's elements or of values, if a file has them


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    name: str
    description: str
    version: str
    author: str
    license: str
    inputs: tuple[TensorDescription, ...]  # of the main subgraph, in its order
    outputs: tuple[TensorDescription, ...]


def describe(model: Model) -> ModelDescription | None:
    """The description in a model file; None: it has none.

    Raises:
        ModelError: it is damaged. The model itself may be right.
    """
    data = model.metadata.get(_NAME)
    if not data:
        return None
    source = f"{model.source}, {_NAME}"
    if len(data) < 8 or bytes(data[4:8]) != _IDENTIFIER:
        raise ModelError(f"{printable(source)}: expected the identifier {_IDENTIFIER.decode()}")
    root = Flatbuffer(data, source, _LAYOUT).root("ModelMetadata")
    subgraphs, main = root.tables("subgraph_metadata", "SubGraphMetadata"), model.subgraphs[0]
    files = _Files(model)

    def tensors(field: str, count: int) -> tuple[TensorDescription, ...]:
        found = subgraphs[0].tables(field, "TensorMetadata") if subgraphs else []
        if found and len(found) != count:
            subgraphs[0].fail(field, f"must describe {count} tensors", len(found))
        return tuple(_tensor(table, files) for table in found)

    return ModelDescription(
        name=root.string("name") or "",
        description=root.string("description") or "",
        version=root.string("version") or "",
        author=root.string("author") or "",
        license=root.string("license") or "",
        inputs=tensors("input_tensor_metadata", len(main.inputs)),
        outputs=tensors("output_tensor_metadata", len(main.outputs)),
    )


def tensor_descriptions(model: Model) -> Mapping[int, TensorDescription]:
    """Those of the main subgraph's inputs and outputs, by tensor; damaged ones are logged."""
    try:
        found = describe(model)
    except ModelError as error:
        _LOGGER.warning("Labels and normalization are ignored: %s", error)
        return {}
    if found is None:
        return {}
    main = model.subgraphs[0]
    pairs = (main.inputs, found.inputs), (main.outputs, found.outputs)
    return {i: t for indices, described in pairs for i, t in zip(indices, described, strict=False)}


def _tensor(table: Table, archived: "_Files") -> TensorDescription:
    content = table.table("content", "Content")
    kind = 0 if content is None else content.scalar("content_properties_type", UINT8)
    files = table.tables("associated_files", "AssociatedFile")
    names = tuple(file.string("name") or "" for file in files)
    labels = (
        name
        for name, file in zip(names, files, strict=True)
        if file.scalar("type", UINT8) in _LABELS
    )
    return TensorDescription(
        name=table.string("name") or "",
        description=table.string("description") or "",
        content=_CONTENTS.get(kind, ""),
        normalization=_normalization(table),
        files=names,
        labels=next((archived.lines(name) for name in labels), ()),  # the others are translations
    )


def _normalization(table: Table) -> Normalization | None:
    for unit in table.tables("process_units", "ProcessUnit"):
        if unit.scalar("options_type", UINT8) != _NORMALIZATION:
            continue
        options = unit.table("options", "NormalizationOptions")
        if options is None:
            continue
        mean, std = (options.vector(field, "<f4") for field in ("mean", "std"))
        if mean is None or std is None or not len(mean) == len(std) > 0 or not std.all():
            options.fail("std", "must have a number other than 0 for each mean", std)
        return Normalization(tuple(mean.tolist()), tuple(std.tolist()))
    return None


class _Files:
    """The files in the archive behind a model, which is opened when it is first read."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._zip: zipfile.ZipFile | None = None
        self._left = _MOST_LABEL_BYTES
        self._known: dict[str, tuple[str, ...]] = {}

    def lines(self, name: str) -> tuple[str, ...]:
        """The lines of a file, without empty ones at the end."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> tuple[str, ...]:
        source = f"{printable(self._model.source)}: {printable(name)}"
        try:
            if self._zip is None:
                self._zip = zipfile.ZipFile(archive.MemoryFile(self._model.content))
            with self._zip.open(name) as file:
                text = file.read(self._left + 1)
        except KeyError as error:
            raise ModelError(f"{source} is not in the archive behind the model") from error
        except archive.ERRORS as error:
            raise ModelError(f"{source}, in the archive behind the model: {error}") from error
        if len(text) > self._left:
            raise ModelError(f"{source}: a model's labels have at most {_MOST_LABEL_BYTES} bytes")
        self._left -= len(text)
        return tuple(text.decode("utf-8", "replace").rstrip().splitlines())
