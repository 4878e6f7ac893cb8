"""Opens model files as a `Service`."""

import os
from collections.abc import Mapping

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.engine import open_model
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.metrics import Metrics
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
    found = [
        model
        for name, path in models.items()
        for model in open_model(path, name, settings, metrics.recorder(name, "1"))
    ]
    return Service(found, limits, metrics.text)


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
