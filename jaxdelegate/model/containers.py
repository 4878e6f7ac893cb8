"""Bundle files: `.litertlm`, and ZIP archives of models (`.task`). Nothing is unpacked to disk."""

import dataclasses
import difflib
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import BinaryIO

from jaxdelegate.errors import ModelError
from jaxdelegate.model import litertlm, zips
from jaxdelegate.model.sections import (
    MAGIC,
    TFLITE_MODEL,
    TFLITE_WEIGHTS,
    Section,
    Value,
    inflated,
    part_name,
)
from jaxdelegate.text import plural, printable

_WEIGHTS_GROUP = "tflite_weights"  # LiteRT-LM's name for a model's section of weights
_MOST_NAMES = 20  # in a message


@dataclasses.dataclass(frozen=True)
class Container:
    """A bundle file's content and its sections."""

    name: str  # for messages
    content: memoryview
    format: str  # "LiteRT-LM 1.7.0" or "ZIP"
    sections: tuple[Section, ...]
    properties: Mapping[str, Value]  # of the whole file

    @property
    def models(self) -> dict[str, Section]:
        return {s.name: s for s in self.sections if s.type == TFLITE_MODEL}

    def data(self, section: Section) -> memoryview:
        """A section's content: a view of the file, or a decompressed copy."""
        stored = self.content[section.offset : section.offset + section.size]
        if section.unpacked_size is None:
            return stored
        where = f"{self.name}!{section.name}"
        unpacked = inflated(
            stored, section.unpacked_size, where, wbits=-zlib.MAX_WBITS, crc=section.crc
        )
        return memoryview(unpacked)

    def model(self, part: str | None) -> Section:
        """The model with a part name; the only one for None."""
        models = self.models
        if part is None and len(models) == 1:
            return next(iter(models.values()))
        if part in models:
            return models[part]
        if part is not None and part_name(part) in models:  # TF_LITE_PREFILL_DECODE
            return models[part_name(part)]
        raise ModelError(f"{printable(self.name)}: {self._why_none(part)}")

    def section(self, name: str) -> Section:
        """The section with a name; a model may have the long form of its part name."""
        found = {s.name: s for s in self.sections}
        if name in found:
            return found[name]
        if part_name(name) in self.models:
            return found[part_name(name)]
        close = difflib.get_close_matches(name, found, n=1)
        hint = f"; did you mean {printable(close[0])!r}?" if close else ""
        raise ModelError(
            f"{printable(self.name)}: expected a section of {_listed(list(found)) or 'none'}, got "
            f"{name!r}{hint}"
        )

    def write(self, file: BinaryIO, new: Mapping[str, memoryview]) -> None:
        """Write the bundle with other data in the sections with these names."""
        if self.content[: len(MAGIC)] == MAGIC:
            litertlm.write(file, self.content, self.name, self.sections, new)
        else:
            places = {s.offset: new[s.name] for s in self.sections if s.name in new}
            zips.write(file, self.content, self.name, places)

    def _why_none(self, part: str | None) -> str:
        names = list(self.models)
        if not names:
            others = _listed([s.name for s in self.sections]) or "nothing"
            return f"the bundle must have a model, got {others}"
        if part is None:
            example = f"{self.name}!{names[0]}"
            return (
                f"a bundle of {plural(len(names), 'model')}: name one after an exclamation mark, "
                f"for example {printable(example)!r}; its models: {_listed(names)}"
            )
        close = difflib.get_close_matches(part, names, n=1)
        hint = f"; did you mean {printable(close[0])!r}?" if close else ""
        return (
            f"the bundle does not have a model {printable(part)!r}; its models: "
            f"{_listed(names)}{hint}"
        )

    def files_of(self, model: Section) -> dict[str, memoryview]:
        """The files next to a model by name: LiteRT-LM stores its weights in another section."""
        return {name: self.data(section) for name, section in self.weights_of(model).items()}

    def weights_of(self, model: Section) -> dict[str, Section]:
        """The section of a model's weights, by the name of their file; empty: it has none."""
        weights = (s for s in self.sections if s.type == TFLITE_WEIGHTS)
        own = [s for s in weights if s.model_type == model.model_type]
        return {_WEIGHTS_GROUP: own[0]} if own else {}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return printable(", ".join(names[:_MOST_NAMES])) + more


def read_container(content: memoryview, name: str) -> Container:
    """The sections of a file with a bundle's first bytes; a ModelError if it is damaged."""
    if content[: len(MAGIC)] == MAGIC:
        sections, properties = litertlm.read_header(content, name)
        kind = f"LiteRT-LM {litertlm.version(content)}"
        return Container(name, content, kind, sections, properties)
    return Container(name, content, "ZIP", zips.read_members(content, name), MappingProxyType({}))
