"""The clients of the table in docs/lm_serving.md, each with the same requests.

A client without a method, or with None, has no such requests.
Importing this module imports none of them.
"""

import copy
import functools
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytest

from tests.support.language_models import SPECIAL

FEATURES = ("chat", "stream", "tools", "streamed_calls", "structured", "embeddings", "scores")
SAID = "Hello"
MOST = 48  # tokens of an answer
TEXTS = ["abc", "a longer one"]
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather", "parameters": CITY}
TOOL = {"type": "function", "function": WEATHER}
MESSAGES = [{"role": "user", "content": SAID}]
RESULT = "sunny"
COMMA = len(SPECIAL) + ord(",")  # a token of the tests' tokenizer
_OPTIONS: dict[str, Any] = {"model": "tiny", "temperature": 0}
_SHORT: dict[str, Any] = {**_OPTIONS, "max_tokens": MOST}
_LONG: dict[str, Any] = {**_OPTIONS, "max_tokens": 200}
_NAMED = {"type": "function", "function": {"name": "weather"}}

Called = tuple[str, Any]  # a function's name and its arguments
Used = tuple[str, Any, str]  # and the answer to its result


def city_model() -> Any:
    """The schema as a pydantic model."""
    pydantic = pytest.importorskip("pydantic")
    return pydantic.create_model(
        "City",
        __config__=pydantic.ConfigDict(extra="forbid"),
        city=(Literal["Rome", "Oslo"], ...),
        days=(int, pydantic.Field(ge=0, le=9)),
    )


def imported(name: str, package: str) -> Any:
    return pytest.importorskip(name, reason=f"the package {package} is not installed")


class OpenAI:
    """openai, with /v1/chat/completions."""

    def __init__(self, url: str) -> None:
        module = imported("openai", "openai")
        self.client = module.OpenAI(base_url=url, api_key="none", max_retries=0)

    def _create(self, **fields: Any) -> Any:
        return self.client.chat.completions.create(**{"messages": MESSAGES, **_SHORT, **fields})

    def chat(self) -> str:
        return str(self._create().choices[0].message.content)

    def stream(self) -> Sequence[str]:
        chunks = self._create(stream=True, stream_options={"include_usage": True})
        return [c.choices[0].delta.content or "" for c in chunks if c.choices]

    def tools(self) -> Used:
        options = {**_LONG, "tools": [TOOL]}
        message = self._create(**options, tool_choice=_NAMED).choices[0].message
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
        answer = self._create(**options, tool_choice="none", messages=[*MESSAGES, message, result])
        function = call.function
        return function.name, json.loads(function.arguments), answer.choices[0].message.content

    def streamed_calls(self) -> Sequence[Called]:
        tools = [{"type": "function", "function": {**WEATHER, "strict": True}}]
        options = {"tools": tools, "tool_choice": _NAMED, **_LONG}
        with self.client.chat.completions.stream(messages=MESSAGES, **options) as stream:
            for _ in stream:
                pass
            calls = stream.get_final_completion().choices[0].message.tool_calls
        return [(call.function.name, json.loads(call.function.arguments)) for call in calls]

    def structured(self) -> Any:
        found = self.client.chat.completions.parse(
            messages=MESSAGES, response_format=city_model(), **_LONG
        )
        return found.choices[0].message.parsed.model_dump()

    def embeddings(self) -> Sequence[Sequence[float]]:
        found = self.client.embeddings.create(model="tiny", input=TEXTS)
        return [row.embedding for row in found.data]

    def scores(self) -> Sequence[float]:
        found = self._create(logprobs=True)
        return [token.logprob for token in found.choices[0].logprobs.content]


class OpenAIResponses(OpenAI):
    """openai, with /v1/responses."""

    embeddings = None

    def _create(self, **fields: Any) -> Any:
        options = {**_OPTIONS, "input": SAID, "max_output_tokens": MOST, "store": False}
        return self.client.responses.create(**{**options, **fields})

    def chat(self) -> str:
        return str(self._create().output_text)

    def stream(self) -> Sequence[str]:
        return [
            e.delta for e in self._create(stream=True) if e.type == "response.output_text.delta"
        ]

    def tools(self) -> Used:
        options = {"tools": [{"type": "function", **WEATHER}], "max_output_tokens": 200}
        choice = {"type": "function", "name": "weather"}
        found = self._create(**options, tool_choice=choice)
        (call,) = found.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        items = [*MESSAGES, *found.output, result]
        answer = self._create(**options, tool_choice="none", input=items)
        return call.name, json.loads(call.arguments), answer.output_text

    def streamed_calls(self) -> Sequence[Called]:
        choice = {"type": "function", "name": "weather"}
        tools = [{"type": "function", **WEATHER, "strict": True}]
        options = {"tools": tools, "tool_choice": choice, "max_output_tokens": 200, **_OPTIONS}
        with self.client.responses.stream(input=SAID, **options) as stream:
            for _ in stream:
                pass
            calls = stream.get_final_response().output
        return [(call.name, json.loads(call.arguments)) for call in calls]

    def structured(self) -> Any:
        found = self.client.responses.parse(
            input=SAID, text_format=city_model(), max_output_tokens=200, **_OPTIONS
        )
        return found.output_parsed.model_dump()

    def scores(self) -> Sequence[float]:
        found = self._create(include=["message.output_text.logprobs"])
        return [token.logprob for token in found.output[0].content[0].logprobs]


class LangChain:
    """langchain-openai, with /v1/chat/completions."""

    responses = False

    def __init__(self, url: str) -> None:
        self.module = imported("langchain_openai", "langchain-openai")
        self.address = {"base_url": url, "api_key": "none", "max_retries": 0}

    def _model(self, **fields: Any) -> Any:
        options = {**_SHORT, "use_responses_api": self.responses, **self.address, **fields}
        return self.module.ChatOpenAI(**options)

    def chat(self) -> str:
        return str(self._model().invoke(SAID).text)

    def stream(self) -> Sequence[str]:
        return [str(chunk.text) for chunk in self._model().stream(SAID)]

    def tools(self) -> Used:
        messages = imported("langchain_core.messages", "langchain-core")
        bound = self._model(max_tokens=200).bind_tools([TOOL], tool_choice="weather")
        said = messages.HumanMessage(SAID)
        message = bound.invoke([said])
        (call,) = message.tool_calls
        result = messages.ToolMessage(RESULT, tool_call_id=call["id"])
        unbound = self._model(max_tokens=200).bind_tools([TOOL], tool_choice="none")
        return call["name"], call["args"], unbound.invoke([said, message, result]).text

    def streamed_calls(self) -> Sequence[Called]:
        bound = self._model(max_tokens=200).bind_tools([TOOL], tool_choice="weather")
        whole = functools.reduce(operator.add, bound.stream(SAID))
        return [(call["name"], call["args"]) for call in whole.tool_calls]

    def structured(self) -> Any:
        """By the schema, and by a function."""
        for method in ("json_schema", "function_calling"):
            model = self._model(max_tokens=200)
            found = model.with_structured_output(city_model(), method=method).invoke(SAID)
        return found.model_dump()

    def embeddings(self) -> Sequence[Sequence[float]]:
        """Without the check of lengths, which sends tokens of another tokenizer."""
        model = self.module.OpenAIEmbeddings(
            model="tiny", check_embedding_ctx_length=False, **self.address
        )
        rows: list[list[float]] = model.embed_documents(TEXTS)
        return rows

    def scores(self) -> Sequence[float]:
        found = self._model(logprobs=True).invoke(SAID).response_metadata["logprobs"]
        return [token["logprob"] for token in found["content"]]


class LangChainResponses(LangChain):
    """langchain-openai, with /v1/responses."""

    responses = True
    embeddings = scores = None


class LlamaIndex:
    """llama-index, OpenAILike."""

    def __init__(self, url: str) -> None:
        self.module = imported("llama_index.llms.openai_like", "llama-index-llms-openai-like")
        self.core = imported("llama_index.core", "llama-index-core")
        self.address = {"api_base": url, "api_key": "none", "max_retries": 0}

    def _model(self, most: int = MOST, **fields: Any) -> Any:
        return self.module.OpenAILike(
            model="tiny",
            temperature=0,
            max_tokens=most,
            is_chat_model=True,
            is_function_calling_model=True,
            **self.address,
            **fields,
        )

    def _messages(self) -> list[Any]:
        return [self.core.llms.ChatMessage(role="user", content=SAID)]

    def chat(self) -> str:
        return str(self._model().chat(self._messages()).message.content)

    def stream(self) -> Sequence[str]:
        return [part.delta or "" for part in self._model().stream_chat(self._messages())]

    def _tool(self) -> Any:
        pydantic = pytest.importorskip("pydantic")

        def weather(city: Literal["Rome", "Oslo"], days: int = pydantic.Field(ge=0, le=9)) -> str:
            """The weather."""
            return f"{city}, {days}: {RESULT}"

        return self.core.tools.FunctionTool.from_defaults(weather)

    def streamed_calls(self) -> Sequence[Called]:
        model = self._model(200)
        parts = model.stream_chat_with_tools(
            [self._tool()], chat_history=self._messages(), tool_required=True
        )
        *_, last = parts
        calls = model.get_tool_calls_from_response(last)
        return [(call.tool_name, call.tool_kwargs) for call in calls]

    def tools(self) -> Used:
        tool = self._tool()
        model = self._model(200)
        answer = model.chat_with_tools([tool], chat_history=self._messages(), tool_required=True)
        (call,) = model.get_tool_calls_from_response(answer)
        result = self.core.llms.ChatMessage(
            role="tool",
            content=str(tool(**call.tool_kwargs)),
            additional_kwargs={"tool_call_id": call.tool_id},
        )
        history = [*self._messages(), answer.message, result]
        said = model.chat_with_tools([tool], chat_history=history, tool_choice="none")
        return call.tool_name, call.tool_kwargs, str(said.message.content)

    def structured(self) -> Any:
        prompt = self.core.PromptTemplate(SAID)
        for by_schema in (True, False):
            model = self._model(200, should_use_structured_outputs=by_schema)
            found = model.structured_predict(city_model(), prompt)
        return found.model_dump()

    def embeddings(self) -> Sequence[Sequence[float]]:
        name = "llama_index.embeddings.openai_like"
        module = imported(name, "llama-index-embeddings-openai-like")
        model = module.OpenAILikeEmbedding(model_name="tiny", **self.address)
        rows: list[list[float]] = model.get_text_embedding_batch(TEXTS)
        return rows

    def scores(self) -> Sequence[float]:
        """The most likely token of each place is the chosen one at temperature 0."""
        found = self._model(logprobs=True, top_logprobs=1).chat(self._messages())
        return [token.logprob for (token,) in found.logprobs]


class LiteLLM:
    """litellm, as the providers openai and hosted_vllm."""

    provider = "openai"
    _bias: ClassVar[Mapping[str, int]] = {}

    def __init__(self, url: str) -> None:
        patch = pytest.MonkeyPatch()
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the network otherwise
        self.module = imported("litellm", "litellm")
        imported("mcp", "mcp")  # litellm imports it for tools
        patch.undo()
        self.address = {"api_base": url, "api_key": "none", "max_retries": 0}

    def _create(self, **fields: Any) -> Any:
        options = {**_SHORT, "model": f"{self.provider}/tiny", "messages": MESSAGES}
        return self.module.completion(**{**options, **self.address, **fields})

    def chat(self) -> str:
        return str(self._create().choices[0].message.content)

    def stream(self) -> Sequence[str]:
        return [chunk.choices[0].delta.content or "" for chunk in self._create(stream=True)]

    def tools(self) -> Used:
        tools = copy.deepcopy([TOOL])  # it changes them
        options = {"tool_choice": _NAMED, "logit_bias": self._bias, "max_tokens": 200}
        message = self._create(tools=tools, **options).choices[0].message
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
        messages = [*MESSAGES, message.model_dump(), result]
        answer = self._create(tools=tools, tool_choice="none", messages=messages)
        function = call.function
        return function.name, json.loads(function.arguments), answer.choices[0].message.content

    def streamed_calls(self) -> Sequence[Called]:
        options = {"tool_choice": _NAMED, "logit_bias": self._bias, "max_tokens": 200}
        chunks = [*self._create(tools=copy.deepcopy([TOOL]), stream=True, **options)]
        whole = self.module.stream_chunk_builder(chunks, messages=MESSAGES)
        calls = whole.choices[0].message.tool_calls
        return [(call.function.name, json.loads(call.function.arguments)) for call in calls]

    def structured(self) -> Any:
        found = self._create(response_format=city_model(), max_tokens=200)
        return json.loads(found.choices[0].message.content)

    def embeddings(self) -> Sequence[Sequence[float]]:
        model = f"{self.provider}/tiny"
        found = self.module.embedding(model=model, input=TEXTS, **self.address)
        return [row["embedding"] for row in found.data]

    def scores(self) -> Sequence[float]:
        found = self._create(logprobs=True)
        return [token["logprob"] for token in found.choices[0].logprobs["content"]]


class LiteLLMVllm(LiteLLM):
    """litellm, as the provider hosted_vllm."""

    provider = "hosted_vllm"
    # It takes additionalProperties out of schemas, so the tiny model would add many.
    _bias: ClassVar[Mapping[str, int]] = {str(COMMA): -100}


class LiteLLMResponses(LiteLLM):
    """litellm's function `responses`, with /v1/responses."""

    embeddings = None

    def _create(self, **fields: Any) -> Any:
        options = {"model": "openai/tiny", "input": SAID, "temperature": 0, **self.address}
        return self.module.responses(**{**options, "max_output_tokens": MOST, **fields})

    def chat(self) -> str:
        return str(self._create().output_text)

    def stream(self) -> Sequence[str]:
        return [
            e.delta for e in self._create(stream=True) if e.type == "response.output_text.delta"
        ]

    def tools(self) -> Used:
        options = {"tools": [{"type": "function", **WEATHER}], "max_output_tokens": 200}
        choice = {"type": "function", "name": "weather"}
        found = self._create(**options, tool_choice=choice)
        (call,) = found.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        items = [*MESSAGES, call.model_dump(), result]
        answer = self._create(**options, tool_choice="none", input=items)
        return call.name, json.loads(call.arguments), answer.output_text

    def streamed_calls(self) -> Sequence[Called]:
        choice = {"type": "function", "name": "weather"}
        options = {"tools": [{"type": "function", **WEATHER}], "max_output_tokens": 200}
        *_, last = self._create(stream=True, tool_choice=choice, **options)
        return [(call.name, json.loads(call.arguments)) for call in last.response.output]

    def structured(self) -> Any:
        found = self._create(text_format=city_model(), max_output_tokens=200)
        return json.loads(found.output_text)

    def scores(self) -> Sequence[float]:
        found = self._create(include=["message.output_text.logprobs"])
        return [token.logprob for token in found.output[0].content[0].logprobs]


class Instructor:
    """instructor, which is for structured output."""

    def __init__(self, url: str) -> None:
        self.module = imported("instructor", "instructor")
        openai = imported("openai", "openai")
        self.client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)

    def _create(self, mode: str, **fields: Any) -> Any:
        client = self.module.from_openai(self.client, mode=self.module.Mode[mode])
        options = {**_LONG, "messages": MESSAGES, "max_retries": 0, **fields}
        return client.chat.completions.create(**options)

    def chat(self) -> str:
        found = self._create("TOOLS", response_model=None, max_tokens=MOST)
        return str(found.choices[0].message.content)

    def structured(self) -> Any:
        """By a function, and by a schema."""
        for mode in ("TOOLS", "JSON_SCHEMA"):
            found = self._create(mode, response_model=city_model())
        return found.model_dump()


CLIENTS = {
    "openai": OpenAI,
    "openai, `/v1/responses`": OpenAIResponses,
    "langchain-openai": LangChain,
    "langchain-openai, `use_responses_api`": LangChainResponses,
    "llama-index, `OpenAILike`": LlamaIndex,
    "litellm, `openai/`": LiteLLM,
    "litellm, `hosted_vllm/`": LiteLLMVllm,
    "litellm, `responses`": LiteLLMResponses,
    "instructor": Instructor,
}
