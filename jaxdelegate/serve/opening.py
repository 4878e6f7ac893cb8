"""Model files -> what a server serves. Knows no protocol."""

import os
from collections.abc import Mapping

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.engine import open_model
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.metrics import Metrics
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.settings import ServeSettings

VARIABLE = "JAXDELEGATE_SERVE_MODELS"


def opened(
    models: Mapping[str, str | os.PathLike[str]],
    settings: ServeSettings | None = None,
    limits: Limits | None = None,
) -> Service:
    """Read files; `Service.start` begins to compile them.

    Args:
        models: files by the names that clients give.
        settings: of every model; None: the defaults.
        limits: of requests; None: the defaults.

    Raises:
        ModelError: a file cannot be read.
        OptionError: no file, an impossible option, or a name that cannot stand in an address.
    """
    if not models:
        raise OptionError("want at least one model to serve, got none")
    metrics = Metrics()
    found = [
        model
        for name, path in models.items()
        for model in open_model(path, name, settings, metrics.recorder(name, "1"))
    ]
    return Service(found, limits, metrics.text)


def parse_models(text: str) -> dict[str, str]:
    """Names and files of `name=path,name=path`.

    Raises:
        OptionError: a part is of another form, or a name stands there twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, path = part.strip().partition("=")
        if not (name and equals and path):
            raise OptionError(f"models: want name=path,name=path, got {part!r}")
        if name in found:
            raise OptionError(f"models: the name {name!r} stands there twice")
        found[name] = path
    return found
