"""Opens model files as a `Service`."""

import os
from collections.abc import Mapping
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.model.sections import EMBEDDING_METADATA, LLM_METADATA
from jaxdelegate.model.source import text_metadata
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.metrics import Metrics
from jaxdelegate.serve.records import ServedModel
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2.model import open_model

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
    found = list[ServedModel]()
    language_models = list[Any]()
    for name, path in models.items():
        kind = text_metadata(path)
        if kind == LLM_METADATA:
            from jaxdelegate.serve.openai.language_model import open_language_model  # noqa: PLC0415 (slow)

            language_models.append(open_language_model(path, name, settings, metrics))
        elif kind == EMBEDDING_METADATA:
            from jaxdelegate.serve.openai.embedding_model import (  # noqa: PLC0415 (slow)
                open_embedding_model,
            )

            language_models.append(open_embedding_model(path, name, settings, metrics))
        else:
            found += open_model(path, name, settings, metrics.recorder(name, "1"))
    return Service(found, limits, metrics.text, language_models=language_models)


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
