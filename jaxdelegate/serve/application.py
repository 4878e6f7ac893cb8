"""An ASGI application that serves models over HTTP."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping

from jaxdelegate.optional import needs

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Lifespan
except ModuleNotFoundError as missing:
    raise needs("serving", missing, "serve") from missing

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.clients import RequestError, shown
from jaxdelegate.serve.endpoints import Endpoint, OnError, error_response, json_response, route
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.memory_budgets import Budgets
from jaxdelegate.serve.service import Service, open_service, parse_models
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2 import api as v2_api
from jaxdelegate.version import __version__

VARIABLE = "JAXDELEGATE_SERVE_MODELS"


def create(
    models: Mapping[str, str | os.PathLike[str]] | None = None,
    settings: ServeSettings | None = None,
    limits: Limits | None = None,
    *,
    is_ready_first: bool = False,
) -> Starlette:
    """An ASGI application for custom servers, for instance with `uvicorn --factory`.

    Models compile while the application runs: `/v2/health/live` succeeds immediately,
    `/v2/health/ready` when they are compiled. Their threads start with the application (ASGI's
    lifespan), so this function may be called before a fork, as `gunicorn --preload` does. With
    `is_ready_first` the server starts only when all models are compiled.

    `models` are files by the names that clients use; None: those of the environment variable
    JAXDELEGATE_SERVE_MODELS, `name=path,name=path`.

    Raises:
        ModelError: a file cannot be read.
        OptionError: no model, or an invalid option or name.
    """
    if models is None:
        if not os.environ.get(VARIABLE):
            raise OptionError(
                f"{VARIABLE}: expected name=path,name=path in the environment, got none"
            )
        models = parse_models(os.environ[VARIABLE])
    served = open_service(models, settings, limits)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        served.start()
        if is_ready_first:
            workers = [model.worker for model in served.all.values()]
            await asyncio.gather(*(asyncio.to_thread(w.wait_until_ready) for w in workers))
        yield
        await served.close()

    return application(served, lifespan)


def application(served: Service, lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    budgets = Budgets(served.limits)
    routes = [
        *v2_api.routes(served, budgets),
        route("/metrics", _metrics(served)),
        route("/health", _health(served)),
        route("/ping", _health(served), "GET", "POST"),
        route("/version", _version),
    ]
    on_openai_error: OnError = error_response
    if served.language_models:
        from jaxdelegate.serve.openai import api  # noqa: PLC0415 (takes as long as all others)

        routes += api.routes(served, budgets)
        on_openai_error = api.error_response

    async def refused(request: Request, error: Exception) -> Response:
        """The response to requests that Starlette refuses: unknown paths and methods."""
        assert isinstance(error, HTTPException)
        path, status = request.url.path, error.status_code
        reasons = {404: "unknown path", 405: f"the path does not support {request.method}"}
        message = f"{shown(path)}: {reasons.get(status, error.detail)}"
        respond = on_openai_error if path.startswith("/v1/") else error_response
        return respond(RequestError(message, status, headers=error.headers))

    app = Starlette(
        routes=routes,
        middleware=_answers_to_pages(served.limits),
        exception_handlers={HTTPException: refused},
        lifespan=lifespan,
    )
    app.state.limits = served.limits
    app.router.redirect_slashes = False
    return app


def _metrics(served: Service) -> Endpoint:
    async def metrics(_request: Request) -> Response:
        if served.metrics is None:
            raise RequestError("this server has no metrics", 404)
        text, kind = served.metrics()
        return Response(text, headers={"Content-Type": kind})

    return metrics


def _health(served: Service) -> Endpoint:
    """For load balancers, as in vLLM: status 200 if all models are ready, else 503."""

    async def health(_request: Request) -> Response:
        return Response(status_code=200 if served.is_ready else 503)

    return health


async def _version(_request: Request) -> Response:
    return json_response({"version": __version__})


def _answers_to_pages(limits: Limits) -> list[Middleware]:
    """Pages of these origins may read responses."""
    if not limits.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=limits.allowed_origins,
            allow_methods="*",
            allow_headers="*",
            expose_headers="*",
        )
    ]
