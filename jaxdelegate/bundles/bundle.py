"""An open bundle: its sections, its models without copies, and what reads the others."""

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxdelegate.bundles import metadata, tokenizers
from jaxdelegate.errors import ModelError
from jaxdelegate.model.containers import Container
from jaxdelegate.model.sections import (
    BEGINNING_BYTES,
    EMBEDDING_METADATA,
    EXECUTOR_METADATA,
    LLM_METADATA,
    TFLITE_MODEL,
    Section,
    Value,
    is_bundle,
)
from jaxdelegate.model.source import (
    PART,
    BundledModel,
    ModelSource,
    Source,
    bundled,
    container,
    not_a_bundle,
    open_file,
    open_source,
)
from jaxdelegate.text import printable


@runtime_checkable
class Savable(Protocol):
    """A `jaxdelegate.Model`."""

    def save(self, path: str | os.PathLike[str]) -> None: ...

    def to_bytes(self) -> bytes: ...


Part: TypeAlias = ModelSource | Savable


def open_bundle(source: str | os.PathLike[str] | bytes) -> "Bundle":
    """Open a file of several models, tokenizers and metadata.

    Args:
        source: the path of a `.litertlm` file, a `.task` file or another ZIP archive of `.tflite`
            files, or its content.

    Raises:
        ModelError: the file cannot be opened, is not a bundle, or is damaged.
    """
    file, part = open_file(source)
    if part is not None:
        raise ModelError(
            f"open_bundle: expected a bundle, got the model {printable(part)!r} in "
            f"{printable(file.name)!r}: remove {printable(PART + part)!r}"
        )
    if not is_bundle(file.content[:BEGINNING_BYTES]):
        raise ModelError(
            f"{printable(file.name)}: expected a bundle, which begins with LITERTLM or as a ZIP "
            f"archive{not_a_bundle(file)}"
        )
    return Bundle(file)


class Bundle:
    """A bundle of models, tokenizers and metadata; `open_bundle` creates it.

    The file is read in place: models and sections are views of it, and nothing is written to disk.
    A file of more than 64 MiB is mapped, and must not be changed in place while it is open.
    """

    def __init__(self, file: Source) -> None:
        self._file = file
        self._container = container(file)

    @property
    def path(self) -> str:
        """The path of the file, or "<bytes>"."""
        return self._file.name

    @property
    def format(self) -> str:
        """The format, with its version: "LiteRT-LM 1.7.0" or "ZIP"."""
        return self._container.format

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return len(self._file.content)

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections, in the order of the file's header."""
        return self._container.sections

    @property
    def properties(self) -> Mapping[str, Value]:
        """The key-value pairs of the file's header, for example its authors."""
        return self._container.properties

    @property
    def models(self) -> Mapping[str, BundledModel]:
        """The models by part name.

        Each can be used wherever a model's path is expected, for example in
        `jaxdelegate.Interpreter` and `jaxdelegate.load`, and is the path `bundle.litertlm!part`
        for `os.fspath`. A compressed member of a ZIP archive is decompressed when it is read here.
        """
        return _Models(self._file, self._container)

    def data(self, name: str) -> memoryview:
        """The bytes of the section with a name, read-only.

        Raises:
            ModelError: the bundle does not contain it, or its compressed data are damaged.
        """
        section = self._container.section(name)
        self.check_unchanged()
        return self._container.data(section)

    def save(self, path: str | os.PathLike[str], parts: Mapping[str, Part]) -> None:
        """Write the bundle with other models or sections; all others stay byte for byte.

        The file is written atomically. It may be the one that is open: this object and its models
        keep the old content.

        Args:
            path: the file to write, of the same format.
            parts: by part name a model: a `jaxdelegate.Model`, a path, which may be that of a model
                in another bundle, or the content of a `.tflite`. By the name of another section its
                bytes, as `data` returns them; compressed members of ZIP archives are stored without
                compression.

        Raises:
            ModelError: the bundle does not contain a part, a model is none or is damaged, or has
                weights in a file of its own for which the bundle has no section.
            TypeError: a part is none of these.
            OSError: the file cannot be written.
        """
        if not isinstance(path, str | os.PathLike):
            raise TypeError(
                "Bundle.save(path, parts): expected path to be that of a file, got "
                f"{type(path).__name__}"
            )
        from jaxdelegate.model.bundle_writing import save_bundle  # noqa: PLC0415 (most read only)

        new: dict[str, memoryview] = {}
        for name, part in parts.items():
            new.update(self._new_data(name, part))
        save_bundle(os.fsdecode(path), self._file, self._container, new)

    def _new_data(self, name: str, part: Part) -> Mapping[str, memoryview]:
        section = self._container.section(name)
        if section.type != TFLITE_MODEL:
            if not isinstance(part, bytes | bytearray | memoryview):
                raise TypeError(
                    f"Bundle.save: part {name!r}: expected the bytes of the section, got "
                    f"{type(part).__name__}"
                )
            return {section.name: memoryview(part).cast("B")}
        from jaxdelegate.model.bundle_writing import new_model  # noqa: PLC0415 (most read only)

        try:
            model = open_source(part.to_bytes() if isinstance(part, Savable) else part)
            return new_model(self._container, section, model)
        except ModelError as error:
            raise ModelError(f"Bundle.save: part {name!r}: {error}") from error

    def tokenizer(self, model: str = "") -> tokenizers.Tokenizer:
        """The tokenizer.

        Args:
            model: the part name of a model that may have a tokenizer of its own, for example
                "text_encoder".

        Raises:
            ModelError: the bundle does not contain one, or it is damaged.
            OptionError: sentencepiece or tokenizers is not installed.
        """
        every = [s for kind in tokenizers.TYPES for s in self.sections if s.type == kind]
        if not every:
            self._fail("a tokenizer")
        section = next((s for s in every if s.model_type == model), every[0])
        return tokenizers.open_tokenizer(section.type, self.data(section.name), self._at(section))

    @functools.cached_property
    def metadata(self) -> metadata.LlmMetadata:
        """What the bundle declares about its language model.

        Raises:
            ModelError: the bundle does not contain it, or it is damaged.
            OptionError: litert-lm-builder is not installed.
        """
        section = self._only(LLM_METADATA)
        return metadata.read_llm_metadata(self.data(section.name), self._at(section))

    @property
    def template(self) -> str | None:
        """The chat template, in Jinja; None: the bundle does not have one. Errors as `metadata`."""
        return self.metadata.template

    def executor_metadata(self) -> Any:
        """The message ExecutorMetadata of LiteRT-LM: names and axes of caches. Errors as above."""
        return self._message(EXECUTOR_METADATA)

    def embedding_metadata(self) -> Any:
        """The message EmbeddingMetadata of LiteRT-LM. Errors as above."""
        return self._message(EMBEDDING_METADATA)

    def check_unchanged(self) -> None:
        """A ModelError if the mapped file has changed since it was opened."""
        self._file.check_unchanged()

    def __repr__(self) -> str:
        models = ", ".join(self.models) or "no model"
        return f"<{self.format} bundle {self.path!r} of {models}>"

    def _message(self, kind: str) -> Any:
        section, name = self._only(kind), kind.removesuffix("Proto")
        return metadata.read_message(name, self.data(section.name), self._at(section))

    def _only(self, kind: str) -> Section:
        return next((s for s in self.sections if s.type == kind), None) or self._fail(kind)

    def _at(self, section: Section) -> str:
        return f"{self.path}{PART}{section.name}"

    def _fail(self, kind: str) -> Any:
        names = printable(", ".join(s.name for s in self.sections)) or "nothing"
        raise ModelError(f"{printable(self.path)}: expected {kind} in the bundle, got {names}")


class _Models(Mapping[str, BundledModel]):
    def __init__(self, file: Source, bundle: Container) -> None:
        self._file, self._bundle = file, bundle
        self._sections = bundle.models

    def __getitem__(self, name: str) -> BundledModel:
        return bundled(self._file, self._bundle, self._sections[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)
