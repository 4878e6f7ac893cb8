"""A drafter in the server: texts are those without it, and it proposes tokens."""

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.serve.test_openai import CHAT, HELLO, TEXT, Served
from tests.serve.test_openai_fields import serving
from tests.support.language_models import drafter_bundle, language_bundle

PROMPTS = ("Hello", "What is 2 + 3?", "x", "The quick brown fox")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafter") / "tiny.litertlm"
    path.write_bytes(drafter_bundle())
    return path


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    """Its engine has no drafter."""
    with serving(path, Limits(), speculative_decoding=True) as server:
        yield server


def test_texts_are_those_without_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slots share requests that come at once."""
    most, decode = list[int](), ModelRunner.decode

    def noted(runner: ModelRunner, steps: int = 32, *args: Any, **more: Any) -> Any:
        found = decode(runner, steps, *args, **more)
        most.extend(len(output.tokens) - steps for output in found.values())
        return found

    monkeypatch.setattr(ModelRunner, "decode", noted)
    bodies = [{"prompt": p, "max_tokens": 40, "temperature": 0, "logprobs": 0} for p in PROMPTS]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: served.call(TEXT, body).json, bodies))
    assert max(most) > 0  # more tokens than steps
    monkeypatch.undo()
    wanted = served.engine.generate(PROMPTS, max_output_tokens=40)
    for answer, completion in zip(answers, wanted, strict=True):
        (choice,) = answer["choices"]
        assert choice["text"] == completion.text
        assert choice["finish_reason"] == completion.finish_reason
        assert len(choice["logprobs"]["tokens"]) == len(completion.token_ids)


def test_streams_of_drawn_tokens(served: Served) -> None:
    sampler = lm.SamplerConfig(top_k=20, top_p=1.0, temperature=0.8, seed=7)
    (wanted,) = served.engine.generate(["Hello"], sampler_config=sampler, max_output_tokens=30)
    body = {"prompt": "Hello", "max_tokens": 30, "seed": 7, "top_k": 20, "top_p": 1}
    body |= {"temperature": 0.8, "stream": True}
    events = served.call(TEXT, body).events
    assert "".join(event["choices"][0]["text"] for event in events) == wanted.text


def test_grammars_and_the_end_of_the_context(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["ab", "cd"]}}}
    body = {"messages": HELLO, "response_format": form, "temperature": 0}
    assert served.call(CHAT, body).json["choices"][0]["message"]["content"] in ('"ab"', '"cd"')
    (wanted,) = served.engine.generate(["x"])
    answer = served.call(TEXT, {"prompt": "x", "max_tokens": 500, "temperature": 0}).json
    assert answer["choices"][0]["text"] == wanted.text
    assert answer["usage"]["total_tokens"] == 128


def test_a_bundle_without_a_drafter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tiny.litertlm"
    path.write_bytes(language_bundle())
    settings = ServeSettings(speculative_decoding=True)
    server = Server({"tiny": path}, settings, Limits(), port=0, say=lambda _: None)
    with pytest.raises(OptionError, match=r"speculative_decoding: .* needs a model 'mtp_drafter'"):
        server.run()
