"""The source of a model's bytes: its file and the files next to it, a bundle, or memory."""

import dataclasses
import os
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxdelegate.errors import ModelError
from jaxdelegate.model import sections, wrong_files
from jaxdelegate.model.files import BundledFiles, FileContent, Folder, NotRegularError

if TYPE_CHECKING:
    from jaxdelegate.model.containers import Container

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview

PART = "!"  # between the path of a bundle and the name of a model in it


@dataclasses.dataclass(frozen=True)
class Source:
    """A model's bytes and where they come from."""

    name: str  # for messages: its path, or "<bytes>"
    content: memoryview  # read-only
    folder: Folder | None = None  # the files next to it; None: it is from memory
    file: FileContent | None = None  # of `content`; None: it is from memory

    @property
    def is_mapped(self) -> bool:
        """Whether any of its files is mapped and can change."""
        return any(part is not None and part.is_mapped for part in (self.file, self.folder))

    def check_unchanged(self) -> None:
        """A ModelError if mapped files have changed since they were opened."""
        if self.file is not None:
            self.file.check_unchanged()
        if self.folder is not None:
            self.folder.check_unchanged()


class BundledModel(Source):
    """A model in a bundle, without a copy of it: a path, `bundle.litertlm!part`."""

    def __fspath__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<model {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path."""
        return open_source, (self.name,)


def open_source(source: ModelSource) -> Source:
    """Open a file, or view bytes.

    A path may end with `!` and the name of a model in a bundle; a bundle without a name is its only
    model. A link is followed, but the folder is that of the link. A ModelError if the file is
    missing or not a regular file, the model is not in the bundle, or the memory is not contiguous;
    a TypeError for another object.
    """
    if isinstance(source, BundledModel):
        return source
    file, part = open_file(source)
    if not sections.is_bundle(file.content[: sections.BEGINNING_BYTES]):
        if part is None:
            return file
        raise ModelError(
            f"Could not open {file.name + PART + part!r}: {file.name!r} is not a bundle of models"
            f"{not_a_bundle(file)}"
        )
    bundle = container(file)
    if part is None and not bundle.models and file.content[: len(sections.MAGIC)] != sections.MAGIC:
        return file  # any ZIP archive: the reader of models recognizes more formats
    return bundled(file, bundle, bundle.model(part))


def open_file(source: ModelSource) -> tuple[Source, str | None]:
    """A whole file or view, and the name of the model in it that the path requests."""
    if isinstance(source, bytes | bytearray | memoryview):
        return Source("<bytes>", _view(source)), None
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            "expected the path of a .tflite file, or its content as bytes, got "
            f"{type(source).__name__}{_remedy(source)}"
        )
    path, part = split_path(os.fsdecode(source))
    file = _opened(path)
    folder = Folder(os.path.dirname(os.path.abspath(path)))
    return Source(path, file.content, folder, file), part


def split_path(path: str) -> tuple[str, str | None]:
    """The path of a file, and the name after `!` if the path as a whole does not exist."""
    if PART in path and not os.path.exists(path):
        for i in (i for i, character in enumerate(path) if character == PART):
            if os.path.isfile(path[:i]):
                return path[:i], path[i + 1 :]
    return path, None


def text_metadata(source: ModelSource) -> str | None:
    """The metadata that a bundle of a language model or text encoder has; None: other models."""
    file, part = open_file(source)
    if part is not None or not sections.is_bundle(file.content[: sections.BEGINNING_BYTES]):
        return None
    types = {section.type for section in container(file).sections}
    return next(
        (kind for kind in (sections.LLM_METADATA, sections.EMBEDDING_METADATA) if kind in types),
        None,
    )


def not_a_bundle(file: Source) -> str:
    """What to do with a file that is not a bundle."""
    if bytes(file.content[4:8]) == b"TFL3":
        return (
            "; it looks like a single model: jaxdelegate.Interpreter, jaxdelegate.load and "
            "jaxdelegate.ray.Predictor open it by its path"
        )
    return wrong_files.hint(file.name, bytes(file.content[:64]))


def container(file: Source) -> "Container":
    """The sections of a bundle; a ModelError if it is damaged."""
    from jaxdelegate.model.containers import read_container  # noqa: PLC0415 (most files are none)

    return read_container(file.content, file.name)


def bundled(file: Source, bundle: "Container", model: sections.Section) -> BundledModel:
    """A model of an open bundle."""
    name = f"{file.name}{PART}{model.name}"
    is_copy = model.unpacked_size is not None
    return BundledModel(
        name,
        bundle.data(model),
        BundledFiles(name, bundle.files_of(model)),
        None if is_copy else file.file,
    )


def in_bundle(source: ModelSource) -> BundledModel | None:
    """The model in a bundle that a path or content means; None: it is not in a bundle."""
    if isinstance(source, str | os.PathLike) and not isinstance(source, BundledModel):
        path, part = split_path(os.fsdecode(source))
        if part is None and not begins_as_a_bundle(path):
            return None
    opened = open_source(source)
    return opened if isinstance(opened, BundledModel) else None


def interpreter_arguments(
    source: str | os.PathLike[str] | bytes, *, stock: bool = False
) -> dict[str, Any]:
    """A model as an argument of an interpreter; stock ones do not open models in bundles."""
    inside = in_bundle(source) if stock else None
    if inside is not None:
        return {"model_content": bytes(inside.content)}
    if isinstance(source, bytes):
        return {"model_content": source}
    return {"model_path": os.fspath(source)}


def begins_as_a_bundle(path: str) -> bool:
    """Whether a file has the first bytes of a bundle."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return sections.is_bundle(file.read(sections.BEGINNING_BYTES) or b"")
    except (OSError, ValueError):
        return False


def _remedy(source: object) -> str:
    remedies = {"read": "pass its .read()", "tobytes": "pass its .tobytes()"}
    found = [what for name, what in remedies.items() if hasattr(source, name)]
    return f"; {found[0]}" if found else ""


def _opened(path: str) -> FileContent:
    try:
        # O_NONBLOCK: opening a pipe must not block.
        return FileContent(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path)
    except NotRegularError as error:
        why = wrong_files.folder(path) if os.path.isdir(path) else str(error)
        raise ModelError(f"Could not open {path!r}: {why}") from error
    except OSError as error:
        raise ModelError(f"Could not open {path!r}: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte in the path
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"Could not open {path!r}: {error}") from error


def _view(source: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(source)
    if not view.c_contiguous:
        raise ModelError("<bytes>: the memory must be contiguous, got strides")
    return view.cast("B").toreadonly()
