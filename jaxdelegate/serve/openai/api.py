"""Endpoints of OpenAI's API: chats and completions, whole or as streams, embeddings, models."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxdelegate.optional import needs

try:
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ModuleNotFoundError as missing:
    raise needs("serving", missing, "serve") from missing

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.configs import RepetitionPenaltyConfig, output_limit
from jaxdelegate.lm.constraints import Constraint
from jaxdelegate.lm.embedding_engine import normalized
from jaxdelegate.lm.embeddings import EmbeddingOptions
from jaxdelegate.lm.hidden_states import NO_HIDDEN_STATES
from jaxdelegate.lm.request import Request as Prompt
from jaxdelegate.lm.text_stream import StoppedStream, TextStream
from jaxdelegate.lm.threads import in_thread
from jaxdelegate.serve.endpoints import (
    RESERVATIONS,
    client_of,
    error_headers,
    json_response,
    route,
)
from jaxdelegate.serve.memory_budgets import SMALL
from jaxdelegate.serve.openai.batching import Delta, Job
from jaxdelegate.serve.openai.embedding_model import EmbeddingModel
from jaxdelegate.serve.openai.language_model import LanguageModel
from jaxdelegate.serve.openai.requests import (
    MAX_JSON_BYTES,
    ApiError,
    EmbeddingRequest,
    TextRequest,
    chat_request,
    completion_request,
    embedding_request,
)
from jaxdelegate.serve.openai.responses import (
    DONE,
    ChatForm,
    CompletionForm,
    Form,
    Usage,
    embeddings,
    event,
)
from jaxdelegate.serve.records import Client, RequestError
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.v2.datatypes import shown
from jaxdelegate.serve.v2.json_text import Buffer
from jaxdelegate.text import printable

_LOG = logging.getLogger("jaxdelegate.serve")
_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "server_error"}
_CODES = {429: "rate_limit_exceeded", 504: "timeout"}

T = TypeVar("T")
ReadBody = Callable[[Request], Awaitable[Buffer]]
ReadRequest = Callable[[Buffer], TextRequest]


def routes(served: Service, body: ReadBody) -> list[Route]:
    """The routes of the API; `body` reads the body of a request."""
    api = _Api(served, body)
    return [
        route("/v1/models", api.models, on_error=error_response),
        route("/v1/models/{name}", api.model, on_error=error_response),
        route("/v1/chat/completions", api.chat, "POST", on_error=error_response),
        route("/v1/completions", api.completions, "POST", on_error=error_response),
        route("/v1/embeddings", api.embeddings, "POST", on_error=error_response),
    ]


def error_response(error: RequestError) -> Response:
    """The error in OpenAI's form."""
    return json_response(_error(error), error.status, error_headers(error))


def _error(error: RequestError) -> dict[str, Any]:
    return {
        "error": {
            "message": str(error),
            "type": _TYPES.get(error.status, "invalid_request_error"),
            "param": getattr(error, "param", None),
            "code": getattr(error, "code", None) or _CODES.get(error.status),
        }
    }


class _Api:
    def __init__(self, served: Service, body: ReadBody) -> None:
        self._served, self._body = served, body
        # One thread prepares short requests, one long ones and one schemas, which take seconds.
        self._short, self._long, self._schemas = (asyncio.Semaphore() for _ in range(3))

    async def models(self, _request: Request) -> Response:
        data = [_model_object(model) for model in self._served.language_models.values()]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        return json_response(_model_object(self._model(request.path_params["name"])))

    async def chat(self, request: Request) -> Response:
        return await self._answered(request, chat_request)

    async def completions(self, request: Request) -> Response:
        return await self._answered(request, completion_request)

    async def embeddings(self, request: Request) -> Response:
        prepared = await self._prepared(request, self._prepare_texts)
        try:
            rows = await _while_connected(
                request, prepared.model.embed(prepared.ids, client_of(request))
            )
        except* RequestError as several:
            raise several.exceptions[0] from None
        return await asyncio.to_thread(prepared.response, rows)

    async def _answered(self, request: Request, read: ReadRequest) -> Response:
        prepared = await self._prepared(request, functools.partial(self._prepare, read))
        if prepared.request.schema is not None:
            constrain = functools.partial(self._constrain, prepared)
            await self._in_turn(request, self._schemas, constrain)
        answers = Answers(prepared.model, prepared.jobs(client_of(request)))
        request.scope[RESERVATIONS].append(answers)
        answers.start(request.receive)
        if prepared.request.is_stream:
            deltas = aiter(answers)
            first = await anext(deltas)  # errors until here have a status
            return _Events(prepared, first, deltas)
        return json_response(prepared.form.whole([delta async for delta in answers]))

    async def _prepared(self, request: Request, prepare: Callable[[Buffer], T]) -> T:
        """Read the body, and prepare the request in a thread."""
        body = await self._body(request)
        if len(body) > MAX_JSON_BYTES:
            expected = f"the body: expected at most {MAX_JSON_BYTES} bytes of JSON, got {len(body)}"
            raise ApiError(expected, 413)
        lane = self._long if len(body) > SMALL else self._short
        return await self._in_turn(request, lane, lambda: prepare(body))

    async def _in_turn(self, request: Request, lane: asyncio.Semaphore, work: Callable[[], T]) -> T:
        """Do some work in a thread, one at a time; a RequestError of status 503 at a timeout."""

        async def turn() -> T:
            await lane.acquire()
            working = asyncio.wrap_future(in_thread(work))
            working.add_done_callback(lambda _: lane.release())
            working.add_done_callback(asyncio.Future.exception)  # none waits if the client left
            return await asyncio.shield(working)  # the lane is taken until the thread ends

        try:
            async with asyncio.timeout(self._served.limits.seconds):
                return await _while_connected(request, turn())
        except TimeoutError:
            message = "this or other long requests are still being read; try again later"
            raise RequestError(message, 503) from None

    def _constrain(self, prepared: "_Prepared") -> None:
        self._served.check_ready(prepared.model)  # it may have waited
        prepared.constrain()

    def _prepare(self, read: ReadRequest, body: Buffer) -> "_Prepared":
        """The request with its tokens; called in a thread."""
        request = read(body)
        model = self._model(request.model)
        if isinstance(model, EmbeddingModel):
            what = "computes embeddings only: see /v1/embeddings"
            raise ApiError(f"{shown(request.model)} {what}", param="model")
        self._served.check_ready(model)
        return _Prepared(model, request)

    def _prepare_texts(self, body: Buffer) -> "_Texts":
        request = embedding_request(body)
        model = self._model(request.model)
        self._served.check_ready(model)
        if not model.embedding_size:
            what = f"has no embeddings, as {NO_HIDDEN_STATES}: serve one of a text encoder"
            raise ApiError(f"{shown(request.model)} {what}", param="model")
        return _Texts(model, request)

    def _model(self, name: str) -> LanguageModel | EmbeddingModel:
        models = self._served.language_models
        if name in models:
            return models[name]
        known = ", ".join(map(repr, models)) or "none"
        other = "; it has tensors: see /v2/models" if name in self._served.models else ""
        message = f"the model {shown(name)} does not exist{other}; expected one of: {known}"
        raise ApiError(message, 404, param="model", code="model_not_found")


def _model_object(model: LanguageModel | EmbeddingModel) -> dict[str, Any]:
    found = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "jaxdelegate",
    }
    return {**found, "max_model_len": model.max_model_len} if model.is_ready else found


class _Prepared:
    """A request with its prompts' tokens, and the form of its response."""

    def __init__(self, model: LanguageModel, request: TextRequest) -> None:
        self.model, self.request = model, request
        engine, text = model.engine, ""
        self._check_count()
        self._constraint: Constraint | None = None
        if request.messages is None:
            self._prompts = [engine.prompt_ids(prompt) for prompt in request.prompts]
        else:
            text = self._rendered(model, request)
            self._prompts = [engine.prompt_ids(text)]
        param = "prompt" if request.messages is None else "messages"
        for ids in self._prompts:
            _check_ids(ids, engine.max_num_tokens - 1, engine.graph.vocabulary, param)
        usage = Usage([len(ids) for ids in self._prompts])
        self.form: Form
        if request.messages is None:
            self.form = CompletionForm(model.name, usage, has_scores=request.has_scores)
        else:
            channels = engine.text.metadata.channels if request.schema is None else ()
            readers = [ChannelReader(channels, text) for _ in range(request.n)]
            self.form = ChatForm(model.name, usage, readers, has_scores=request.has_scores)

    def _check_count(self) -> None:
        n, most = self.request.n, self.model.batcher.most
        count = n * max(len(self.request.prompts), 1)
        if count > most:
            raise ApiError(
                f"expected at most {most} answers in a request (max_batch_size and "
                f"max_queue_size), got {count}: send several requests",
                param="n" if n > 1 else "prompt",
            )

    def jobs(self, client: Client) -> list[Job]:
        """The sequences to generate, `n` for each prompt."""
        prompts = [ids for ids in self._prompts for _ in range(self.request.n)]
        return [self._job(index, ids, client) for index, ids in enumerate(prompts)]

    def _job(self, index: int, ids: list[int], client: Client) -> Job:
        engine, request = self.model.engine, self.request
        own = request.sampling
        declared = engine.text.sampling_params().sampler
        sampler = own.sampler(declared, engine.graph.vocabulary, index)
        penalties = RepetitionPenaltyConfig(
            presence_penalty=own.presence_penalty or None,
            frequency_penalty=own.frequency_penalty or None,
        )
        params = engine.text.sampling_params(sampler, penalties)
        limit = output_limit(request.max_tokens)
        stream = StoppedStream(TextStream(engine.tokenizer, ids), request.stops)
        owner = self.model.owner(client, request.cache_salt)
        constraint = self._constraint
        prompt = Prompt(ids, limit, params, request.has_scores, constraint, owner=owner)
        return Job(index, client, prompt, stream)

    def constrain(self) -> None:
        """Compile the schema, which the request has; it may take seconds."""
        assert self.request.schema is not None
        try:
            self._constraint = self.model.engine.text.json_constraint(self.request.schema)
        except OptionError as error:
            raise ApiError(printable(str(error)), param="response_format") from None

    def _rendered(self, model: LanguageModel, request: TextRequest) -> str:
        assert request.messages is not None
        try:
            return model.renderer.render(request.messages, request.context, ends=True)
        except ModelError as error:  # it begins with the bundle's path
            problem = str(error).rpartition("chat template: ")[2]
            raise ApiError(f"the chat template fails: {problem}", param="messages") from None


class _Texts:
    """A request for embeddings with its texts' tokens."""

    def __init__(self, model: LanguageModel | EmbeddingModel, request: EmbeddingRequest) -> None:
        self.model, self._request = model, request
        engine, size = model.engine, request.size
        self.ids = [engine.prompt_ids(text) for text in request.texts]
        for number, ids in enumerate(self.ids):
            _check_ids(ids, model.max_model_len, model.vocabulary, f"input[{number}]")
        most = model.embedding_size
        if size is not None and size > most:
            raise ApiError(f"expected at most {most}, got {size}", param="dimensions")

    def response(self, rows: Sequence[np.ndarray]) -> Response:
        """The response with these embeddings, not normalized yet. It takes long for many."""
        options = EmbeddingOptions(output_size=self._request.size)
        found = [normalized(row, options).astype(np.float32) for row in rows]
        tokens, is_packed = sum(map(len, self.ids)), self._request.is_packed
        return json_response(embeddings(self.model.name, tokens, found, is_packed=is_packed))


def _check_ids(ids: Sequence[int], most: int, vocabulary: int, param: str) -> None:
    if not ids:
        raise ApiError("expected at least one token, got an empty prompt", param=param)
    if len(ids) > most:
        raise ApiError(
            f"expected at most {most} tokens by the model's context length, got {len(ids)}",
            param=param,
            code="context_length_exceeded",
        )
    wrong = next((i for i in ids if i >= vocabulary), None)
    if wrong is not None:
        raise ApiError(f"expected token ids below {vocabulary}, got {wrong}", param=param)


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for some work, which is cancelled when the client leaves: a ClientDisconnect."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Answers:
    """The sequences of a request while they are generated; they end when the client leaves."""

    def __init__(self, model: LanguageModel, jobs: Sequence[Job]) -> None:
        self._model, self._jobs = model, jobs
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()  # None: the client has left
        self._loop = asyncio.get_running_loop()
        self._timeout_s = model.settings.answer_timeout_s
        self._watching: asyncio.Task[None] | None = None

    def start(self, receive: Receive) -> None:
        """Queue the sequences, and watch the connection. A RequestError: too many wait."""
        for job in self._jobs:
            job.deliver = self._deliver
        self._deadline = self._loop.time() + self._timeout_s if self._timeout_s else None
        self._model.submit(self._jobs)
        self._watching = asyncio.create_task(self._watch(receive))

    def _deliver(self, delta: Delta) -> None:
        """In the batcher's thread."""
        self._loop.call_soon_threadsafe(self._deltas.put_nowait, delta)

    async def _watch(self, receive: Receive) -> None:
        await _disconnected(receive)
        self._model.cancel(self._jobs)
        self._deltas.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """What the sequences get. A RequestError if one fails, a ClientDisconnect."""
        left = len(self._jobs)
        while left:
            delta = await self._next()
            if delta is None:
                raise ClientDisconnect
            if delta.error is not None:
                raise delta.error
            left -= delta.finish_reason is not None
            yield delta

    async def _next(self) -> Delta | None:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._deltas.get()
        except TimeoutError:
            raise RequestError(
                f"{self._model.name}: the request took longer than {self._timeout_s:g} s "
                "(answer_timeout_s)",
                504,
            ) from None

    async def release(self) -> None:
        """End what still runs."""
        self._model.cancel(self._jobs)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)


class _Events(Response):
    """Server-sent events; an error after the first one is an event, too."""

    media_type = "text/event-stream"

    def __init__(self, prepared: _Prepared, first: Delta, rest: AsyncIterator[Delta]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(None, 200, headers)
        del self.headers["content-length"]
        self._prepared, self._first, self._rest = prepared, first, rest

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with contextlib.suppress(ClientDisconnect):
            async for body in self._bodies(scope):
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _bodies(self, scope: Scope) -> AsyncIterator[bytes]:
        has_usage, form = self._prepared.request.has_usage, self._prepared.form
        try:
            yield self._events(self._first)
            async for delta in self._rest:
                yield self._events(delta)
            if has_usage:
                yield event(form.usage_chunk())
        except RequestError as error:
            yield event(_error(error))
        except ClientDisconnect:
            raise
        except Exception:
            _LOG.exception("%s", shown(scope["path"]))
            yield event(_error(RequestError("internal error; see the server's log", 500)))
        yield DONE

    def _events(self, delta: Delta) -> bytes:
        has_usage = self._prepared.request.has_usage
        return b"".join(map(event, self._prepared.form.chunks(delta, has_usage=has_usage)))
