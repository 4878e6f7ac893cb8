"""The application in Ray Serve, which starts replicas; each replica has all models."""

import os
from collections.abc import Mapping
from typing import Any

from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.settings import ServeSettings


def deployment(
    models: Mapping[str, str | os.PathLike[str]],
    settings: ServeSettings | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> Any:
    """A Ray Serve application for `ray.serve.run`.

    Every replica compiles its models, or reads their programs from `serialization_dir`. A replica
    accepts requests when its models are ready. `models` are files by the names that clients use;
    their paths must exist where replicas run. `options` are those of `ray.serve.deployment`.

    Raises:
        ImportError: Ray Serve is not installed.
    """
    try:
        from ray import serve  # noqa: PLC0415 (takes seconds)
    except ImportError as error:
        raise ImportError('Ray Serve is not installed: pip install "ray[serve]"') from error
    paths = {name: os.fspath(path) for name, path in models.items()}

    def build() -> Any:
        from jaxdelegate.serve import application  # noqa: PLC0415 (needs the extra `serve`)

        return application.create(paths, settings, limits, is_ready_first=True)

    @serve.deployment(**{"name": "jaxdelegate", **options})
    @serve.ingress(build)
    class Models:
        """Serves `/v2/...`, and `/v1/...` for language models."""

    return Models.bind()  # type: ignore[attr-defined]  # Ray Serve has no types
