"""Endpoints of OpenAI's API: chats and completions, whole or as streams, embeddings, models."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxdelegate.lm.threads import Lane, in_thread
from jaxdelegate.serve import bodies
from jaxdelegate.serve.clients import Client, RequestError, shown
from jaxdelegate.serve.endpoints import (
    RESERVATIONS,
    Stream,
    client_of,
    error_headers,
    json_response,
    route,
    while_connected,
)
from jaxdelegate.serve.json_objects import Buffer
from jaxdelegate.serve.memory_budgets import SMALL, Budgets
from jaxdelegate.serve.openai import messages, requests, tokenization
from jaxdelegate.serve.openai.answers import Answers
from jaxdelegate.serve.openai.batching import Delta
from jaxdelegate.serve.openai.fields import ApiError, Kind
from jaxdelegate.serve.openai.files import has_files, has_urls, size_without_files
from jaxdelegate.serve.openai.language_model import LanguageModel
from jaxdelegate.serve.openai.prompts import Prompts, Texts, rendered
from jaxdelegate.serve.openai.response_requests import response_request
from jaxdelegate.serve.openai.text_model import TextModel
from jaxdelegate.serve.service import Service

_LOG = logging.getLogger("jaxdelegate.serve")
_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "server_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 504: "timeout"}
_MOST_NAMES = 500  # characters of unknown fields in a header
_MOST_LOADING = 8  # requests that load images by URL at once
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

T = TypeVar("T")
ReadRequest = Callable[[Buffer], requests.TextRequest]


def routes(served: Service, budgets: Budgets) -> list[Route]:
    api = _Api(served, budgets)
    return [
        route("/v1/models", api.models, on_error=error_response),
        route("/v1/models/{name:path}", api.model, on_error=error_response),
        route("/v1/chat/completions", api.chat, "POST", on_error=error_response),
        route("/v1/responses", api.responses, "POST", on_error=error_response),
        route("/v1/completions", api.completions, "POST", on_error=error_response),
        route("/v1/embeddings", api.embeddings, "POST", on_error=error_response),
        route("/tokenize", api.tokenize, "POST", on_error=error_response),
        route("/detokenize", api.detokenize, "POST", on_error=error_response),
        route("/tokenizer_info", api.tokenizer_info, on_error=error_response),
    ]


def error_response(error: RequestError) -> Response:
    return json_response({"error": _error(error)}, error.status, error_headers(error))


def _error(error: RequestError) -> dict[str, Any]:
    return {
        "message": str(error),
        "type": _TYPES.get(error.status, "invalid_request_error"),
        "param": getattr(error, "param", None),
        "code": getattr(error, "code", None) or _CODES.get(error.status),
    }


class _Api:
    def __init__(self, served: Service, budgets: Budgets) -> None:
        self._served, self._budgets = served, budgets
        # One thread prepares short requests, one long ones, one those with images and sounds, which
        # may take seconds like schemas, which have one, too.
        self._short, self._long, self._files, self._schemas = (Lane() for _ in range(4))
        self._urls = Lane(_MOST_LOADING)

    async def models(self, _request: Request) -> Response:
        data = [self._model_object(model) for model in self._served.language_models.values()]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        return json_response(self._model_object(self._model(request.path_params["name"])))

    def _model_object(self, model: TextModel) -> dict[str, Any]:
        is_ready = self._served.is_model_ready(model)
        return {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "jaxdelegate",
            "status": "ready" if is_ready else "failed" if model.worker.error else "loading",
            **({} if model.parent is None else {"parent": model.parent}),
            **({"max_model_len": model.max_model_len} if is_ready else {}),
        }

    async def chat(self, request: Request) -> Response:
        return await self._answered(request, requests.chat_request)

    async def responses(self, request: Request) -> Response:
        return await self._answered(request, response_request)

    async def completions(self, request: Request) -> Response:
        return await self._answered(request, requests.completion_request)

    async def embeddings(self, request: Request) -> Response:
        texts = await self._prepared(request, self._texts)
        try:
            work = texts.model.embed(texts.ids, client_of(request))
            rows = await while_connected(request.receive, work)
        except* RequestError as several:
            raise several.exceptions[0] from None
        vectors = await asyncio.to_thread(texts.response, rows)
        return json_response(vectors, headers=_warnings(texts.request.ignored))

    async def tokenize(self, request: Request) -> Response:
        return json_response(await self._prepared(request, self._tokens))

    async def detokenize(self, request: Request) -> Response:
        return json_response(await self._prepared(request, self._text))

    async def tokenizer_info(self, request: Request) -> Response:
        model = self._language_model(self._ready(request.query_params.get("model", "")))
        return json_response(tokenization.info(model))

    async def _answered(self, request: Request, read: ReadRequest) -> Response:
        client = client_of(request)
        prompts = await self._prepared(request, functools.partial(self._prompts, read, client))
        model, asked = prompts.model, prompts.request
        if prompts.grammar is not None:
            await self._in_turn(request, self._schemas, lambda: self._constrain(prompts))
        if prompts.contents:
            await while_connected(request.receive, self._encoded(prompts))
        jobs = prompts.jobs(client)
        answers = Answers(model.worker, jobs, model.settings.answer_timeout_s)
        request.scope[RESERVATIONS].append(answers)
        answers.submit()
        if asked.is_stream:
            deltas = aiter(answers)
            first = await while_connected(request.receive, _next(deltas))  # errors have a status
            events = _events(prompts, first, deltas, request.url.path)
            headers = {**_STREAM_HEADERS, **_warnings(asked.ignored)}
            return Stream(events, headers, "text/event-stream")
        whole = await while_connected(request.receive, answers.all())

        def response() -> Response:
            return json_response(prompts.form.whole(whole), headers=_warnings(asked.ignored))

        # Scores of a prompt may be many.
        return response() if asked.scored_top is None else await asyncio.to_thread(response)

    async def _encoded(self, prompts: Prompts) -> None:
        """Encode images and sounds of a request; those of others at once are in the same run."""
        encoding = asyncio.wrap_future(in_thread(lambda: self._encode(prompts)))
        encoding.add_done_callback(asyncio.Future.exception)  # none waits if the client left
        await asyncio.shield(encoding)

    async def _prepared(self, request: Request, prepare: Callable[[Buffer], T]) -> T:
        body = await bodies.read(request, self._budgets)
        size = len(body)
        if size > requests.MAX_JSON_BYTES:
            size = size_without_files(body)
        if size > requests.MAX_JSON_BYTES:
            expected = (
                f"the body: expected at most {requests.MAX_JSON_BYTES} bytes of JSON, got {size}"
            )
            raise ApiError(expected, 413)
        lane = self._long if len(body) > SMALL else self._short
        lane = self._files if has_files(body) else lane
        if self._served.limits.allowed_media_domains and has_urls(body):
            lane = self._urls
        return await self._in_turn(request, lane, lambda: prepare(body))

    async def _in_turn(self, request: Request, lane: Lane, work: Callable[[], T]) -> T:
        """Do some work in a lane's thread; a RequestError of status 503 at a timeout."""

        async def turn() -> T:
            working = lane.submit(work)
            try:
                return await asyncio.wrap_future(working)
            finally:
                working.cancel()  # at once: the lane may come to it now

        try:
            async with asyncio.timeout(self._served.limits.seconds):
                return await while_connected(request.receive, turn())
        except TimeoutError:
            message = "this or other long requests are still being read; try again later"
            raise RequestError(message, 503) from None

    # ---- in a thread

    def _prompts(self, read: ReadRequest, client: Client, body: Buffer) -> Prompts:
        request = read(body)
        self._check_known(request.ignored)
        hosts = self._served.limits.allowed_media_domains
        return Prompts(self._language_model(self._ready(request.model)), request, client, hosts)

    def _encode(self, prompts: Prompts) -> None:
        self._served.check_ready(prompts.model)  # it may have waited
        prompts.encode()

    def _tokens(self, body: Buffer) -> dict[str, Any]:
        fields = self._fields(body, requests.TOKENIZE)
        if ("prompt" in fields) == ("messages" in fields):
            raise ApiError("expected one of them", param="prompt and messages")
        chat = messages.chat(fields) if "messages" in fields else None
        model = self._ready(fields.get("model", ""))
        if chat is None:
            text = fields["prompt"]
        else:
            renderer = self._language_model(model).tool_renderer(chat)
            if chat.files:
                raise ApiError("expected only texts here", param="messages")
            text = rendered(renderer, chat)
        has_start = fields.get("add_special_tokens", True)
        return tokenization.tokens(model, text, has_start=has_start)

    def _text(self, body: Buffer) -> dict[str, Any]:
        fields = self._fields(body, requests.DETOKENIZE, {"tokens"})
        return tokenization.text(self._ready(fields.get("model", "")), fields["tokens"])

    def _fields(
        self, body: Buffer, known: Mapping[str, Kind], required: Collection[str] = ()
    ) -> Mapping[str, Any]:
        fields, ignored = requests.checked(body, known, required)
        self._check_known(ignored)
        return fields

    def _check_known(self, ignored: Sequence[str]) -> None:
        if ignored and self._served.limits.strict_fields:
            raise requests.unknown_field(ignored[0])

    def _language_model(self, model: TextModel) -> LanguageModel:
        if not isinstance(model, LanguageModel):
            what = "computes embeddings only: see /v1/embeddings"
            raise ApiError(f"{shown(model.name)} {what}", param="model")
        return model

    def _constrain(self, prompts: Prompts) -> None:
        self._served.check_ready(prompts.model)  # it may have waited
        prompts.constrain()

    def _texts(self, body: Buffer) -> Texts:
        request = requests.embedding_request(body)
        self._check_known(request.ignored)
        return Texts(self._ready(request.model), request)

    def _ready(self, name: str) -> TextModel:
        model = self._model(name)
        self._served.check_ready(model)
        return model

    def _model(self, name: str) -> TextModel:
        models = self._served.language_models
        if name in models:
            return models[name]
        if not name and len(models) == 1:
            return next(iter(models.values()))
        if not name:
            raise ApiError("missing field", param="model", code="missing_required_parameter")
        known = ", ".join(map(repr, models)) or "none"
        other = "; it has tensors: see /v2/models" if name in self._served.models else ""
        message = f"the model {shown(name)} does not exist{other}; expected one of: {known}"
        raise ApiError(message, 404, param="model", code="model_not_found")


def _warnings(ignored: Sequence[str]) -> Mapping[str, str]:
    """The header that names fields which the server does not know."""
    if not ignored:
        return {}
    names = ", ".join(shown(name).encode("ascii", "backslashreplace").decode() for name in ignored)
    return {"Warning": f'299 jaxdelegate "ignored unknown fields: {names[:_MOST_NAMES]}"'}


async def _next(deltas: AsyncIterator[Delta]) -> Delta:
    return await anext(deltas)


async def _events(
    prompts: Prompts, first: Delta, rest: AsyncIterator[Delta], path: str
) -> AsyncIterator[bytes]:
    """Server-sent events; an error after the first one is an event, too."""
    form, has_usage = prompts.form, prompts.request.has_usage

    async def events(delta: Delta) -> bytes:
        made = functools.partial(form.events, delta, has_usage=has_usage)
        return await asyncio.to_thread(made) if delta.prompt_scores else made()

    try:
        yield await events(first)
        async for delta in rest:
            yield await events(delta)
        yield form.last_events(has_usage=has_usage)
    except RequestError as error:
        yield form.error_events(_error(error))
    except Exception:
        _LOG.exception("%s", shown(path))
        internal = RequestError("internal error; see the server's log", 500)
        yield form.error_events(_error(internal))
