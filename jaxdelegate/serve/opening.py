"""Opens model files as a `Service`."""

import os
from collections.abc import Mapping

from jaxdelegate.errors import OptionError
from jaxdelegate.model.sections import BEGINNING_BYTES, LLM_METADATA, is_bundle
from jaxdelegate.model.source import open_file
from jaxdelegate.serve.engine import open_model
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.metrics import Metrics
from jaxdelegate.serve.records import ServedModel
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.settings import ServeSettings

VARIABLE = "JAXDELEGATE_SERVE_MODELS"


def open_service(
    models: Mapping[str, str | os.PathLike[str]],
    settings: ServeSettings | None = None,
    limits: Limits | None = None,
) -> Service:
    """Read model files; `Service.start` compiles them.

    An OptionError for no file, an invalid option, or a name that cannot be part of a URL.
    """
    if not models:
        raise OptionError("expected at least one model to serve, got none")
    metrics = Metrics()
    found, language_models = list[ServedModel](), []
    for name, path in models.items():
        if _is_language_model(path):
            from jaxdelegate.serve.language_model import open_language_model  # noqa: PLC0415 (slow)

            language_models.append(open_language_model(path, name, settings, metrics))
        else:
            found += open_model(path, name, settings, metrics.recorder(name, "1"))
    return Service(found, limits, metrics.text, language_models=language_models)


def _is_language_model(path: str | os.PathLike[str]) -> bool:
    """Whether it is a bundle of a language model; others may have one model of tensors."""
    file, part = open_file(path)
    if part is not None or not is_bundle(file.content[:BEGINNING_BYTES]):
        return False
    from jaxdelegate.bundles.bundle import open_bundle  # noqa: PLC0415 (most files are none)

    return any(section.type == LLM_METADATA for section in open_bundle(path).sections)


def parse_models(text: str) -> dict[str, str]:
    """Names and files of `name=path,name=path`."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, path = part.strip().partition("=")
        if not (name and equals and path):
            raise OptionError(f"models: expected name=path,name=path, got {part!r}")
        if name in found:
            raise OptionError(f"models: duplicate model name {name!r}")
        found[name] = path
    return found
