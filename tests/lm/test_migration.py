"""Scripts of LiteRT-LM's pages, with another import."""

import io
import logging
import sys
from pathlib import Path

import pytest

from jaxdelegate import lm
from tests.support.language_models import language_bundle

# After https://ai.google.dev/edge/litert-lm/python: a chat in a terminal, a conversation, what was
# said before, and sessions.
CHAT = """
import litert_lm

litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
with litert_lm.Engine(PATH) as engine:
    with engine.create_conversation() as conversation:
        while True:
            user_input = input("\\n>>> ")
            for chunk in conversation.send_message_async(user_input):
                print(chunk["content"][0]["text"], end="", flush=True)
"""
CONVERSATION = """
import litert_lm

with litert_lm.Engine(PATH, backend=litert_lm.Backend.CPU, max_num_tokens=128) as engine:
    messages = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]
    sampler = litert_lm.SamplerConfig(top_k=1, top_p=0.95, temperature=1.0)
    with engine.create_conversation(messages=messages, sampler_config=sampler) as conversation:
        response = conversation.send_message("Hello", max_output_tokens=8)
        print(response["content"][0]["text"])
        print(conversation.get_benchmark_info().last_decode_token_count)
"""
SESSION = """
import litert_lm

with litert_lm.Engine(PATH, litert_lm.Backend.CPU()) as engine:
    print(engine.bos_token_id, engine.eos_token_ids)
    print(engine.detokenize(engine.tokenize("Hello")))
    with engine.create_session(max_output_tokens=8) as session:
        session.run_prefill(["Hello"])
        print(session.run_decode().texts[0])
        print(session.get_benchmark_info().last_prefill_token_count)
    with engine.create_session() as session:
        session.run_prefill(["Hello"])
        print(session.run_text_scoring(["world"], store_token_lengths=True).token_lengths)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle())
    return path


def run(script: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litert_lm", lm)
    exec(script, {"PATH": str(path)})


def test_a_chat(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\nAgain\n"))
    before = logging.getLogger("jaxdelegate").level
    try:
        with pytest.raises((EOFError, ValueError)):  # nothing more is typed, or the caches are full
            run(CHAT, path, monkeypatch)
        assert logging.getLogger("jaxdelegate").level == logging.ERROR
    finally:
        logging.getLogger("jaxdelegate").setLevel(before)
    assert len(capsys.readouterr().out) > 20


def test_a_conversation(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(CONVERSATION, path, monkeypatch)
    *text, count = capsys.readouterr().out.splitlines()
    assert "".join(text)
    assert int(count) == 8


def test_a_session(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(SESSION, path, monkeypatch)
    ids, text, *answer, count, lengths = capsys.readouterr().out.splitlines()
    assert (ids, text, count, lengths) == ("1 [[2]]", "Hello", "6", "[5]")
    assert answer


def test_what_is_not_supported_is_named() -> None:
    message = "no attribute 'LiteRtLmNpuBrand': NPUs are not supported"
    with pytest.raises(AttributeError, match=message):
        _ = lm.LiteRtLmNpuBrand  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'Enigne'$"):
        _ = lm.Enigne  # type: ignore[attr-defined]
