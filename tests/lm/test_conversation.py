"""Conversations of a tiny model; the answers wanted are those of litert-lm 0.18.1."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.lm import (
    Content,
    Contents,
    Conversation,
    Engine,
    LoraConfig,
    Message,
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
    ThinkingConfig,
)
from tests.support.language_models import language_bundle

SIMPLE = (
    "{% for m in messages %}<{{ m.content[0].text }}>{% endfor %}"
    "{% if add_generation_prompt %}{{ '?' if enable_thinking else '!' }}{% endif %}"
)
# Templates that keep no thoughts of earlier turns change what they rendered before.
CHANGING = "{% for m in messages %}{{ loop.last }}<{{ m.content[0].text }}>{% endfor %}"

THOUGHTS = {"note": "\ufffd\ufffd", "thought": "\\"}
WANTED = [
    Message.from_json(
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Ni\ufffd]"}],
            "channels": THOUGHTS,
            "reasoning_content": "\\",
        }
    ),
    Message.model(Contents.of("N\ufffd#\ufffd\ufffdi\ufffd\ufffd\ufffd\ufffd\ufffdW")),
    Message.model(Contents.of("N\\H+1w\x0fH+\ufffd\ufffd\ufffd")),
]


def channels(m: Any) -> None:
    for name, start, end in (("thought", "@2 ", "W"), ("note", "Q", "zz")):
        channel = m.channels.add()
        channel.channel_name, channel.start, channel.end = name, start, end
        channel.is_reasoning_channel = name == "thought"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("bundles") / "tiny.litertlm"
    path.write_bytes(language_bundle(SIMPLE, edit=channels))
    with Engine(path) as opened:
        yield opened


@pytest.fixture
def talk(engine: Engine) -> Any:
    greedy = SamplerConfig(top_k=1)
    return functools.partial(
        engine.create_conversation, sampler_config=greedy, max_output_tokens=12
    )


def test_answers_and_channels_are_litert_lms(talk: Any) -> None:
    with talk() as conversation:
        found = [conversation.send_message(text) for text in ("hello", "what?", "tell me")]
        assert found == WANTED
        assert conversation.token_count == 58
        said = [str(m) for m in conversation.messages]
    assert said == ["hello", str(found[0]), "what?", str(found[1]), "tell me", str(found[2])]


def test_channels_can_be_remembered(talk: Any) -> None:
    with talk(filter_channel_content_from_kv_cache=False) as conversation:
        counts = []
        for text in ("hello", "what?", "tell me"):
            answer = conversation.send_message(text)
            counts.append(conversation.token_count)
    assert counts == [21, 41, 63]
    assert str(answer) == "N6B\ufffd\ufffd\ufffd1\ufffd N\ufffd\x05"


def test_parts_make_the_answer(talk: Any) -> None:
    with talk() as conversation:
        parts = list(conversation.send_message_async("hello"))
        last = conversation.messages[-1]
    assert all((str(part) != "") + len(part.channels) == 1 for part in parts)
    assert "".join(map(str, parts)) == str(last) == str(WANTED[0])
    notes = [part.channels["note"] for part in parts if "note" in part.channels]
    assert "".join(notes) == WANTED[0]["channels"]["note"]


def test_every_form_of_a_message_is_the_same(talk: Any) -> None:
    answers = set()
    for message in (
        "hello",
        Contents.of("hello"),
        Message.user("hello"),
        {"role": "user", "content": "hello"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    ):
        with talk() as conversation:
            answers.add(str(conversation.send_message(message)))
    assert answers == {str(WANTED[0])}


def test_what_was_said_before(talk: Any) -> None:
    history = [Message.user("u"), {"role": "assistant", "content": "m"}]
    with talk(messages=history, system_message="S") as conversation:
        assert conversation.render_message_to_string("hi") == "<S><u><m><hi>!"
        assert [m.role.value for m in conversation.messages] == ["system", "user", "assistant"]
        assert conversation.token_count == 0
        conversation.send_message("hi", max_output_tokens=4)
        assert conversation.token_count == 1 + len("<S><u><m><hi>!") + 4
        assert conversation.render_message_to_string("yo") == "<yo>!"


def test_only_new_tokens_are_read(talk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxdelegate.lm.model_runner import ModelRunner

    read, original = list[tuple[int, int]](), ModelRunner.run_prefill

    def spy(self: Any, steps: Any) -> None:
        read.extend((step.start, step.length) for step in steps)
        original(self, steps)

    monkeypatch.setattr(ModelRunner, "run_prefill", spy)
    with talk(filter_channel_content_from_kv_cache=False) as conversation:
        conversation.send_message("hello")
        count = conversation.token_count
        read.clear()
        conversation.send_message("what?")
    # The last token of the first answer is not in the caches yet.
    assert read == [(count - 1, 8)]


def test_a_template_that_changes_what_it_said_is_read_again(talk: Any) -> None:
    with talk(chat_template=CHANGING) as conversation:
        first = conversation.send_message("a", max_output_tokens=2)
        assert conversation.render_message_to_string("b") == f"false<a>false<{first}>true<b>"
        conversation.send_message("b", max_output_tokens=2)
        whole = f"false<a>false<{first}>true<b>"
        assert conversation.token_count == 1 + len(whole.encode()) + 2


def test_texts_for_templates_that_cannot_show_lists(talk: Any) -> None:
    plus = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}"
    omits = "{% for m in messages %}<{{ m.content if m.content is string }}>{% endfor %}"
    shows = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    listed = '<[{"type": "text", "text": "hi"}]>'
    for template, text_contents, want in (
        (plus, None, "<hi>"),
        (omits, None, "<hi>"),
        (shows, None, listed),
        (shows, True, "<hi>"),
        (omits, False, "<>"),
    ):
        with talk(chat_template=template, text_contents=text_contents) as conversation:
            assert conversation.render_message_to_string("hi") == want
    # No user's message is shown, in either form.
    system_only = (
        "{% if messages[0].role == 'system' %}{{ messages[0].content[0].text }}{% endif %}"
    )
    with talk(chat_template=system_only, system_message="S") as conversation:
        assert conversation.render_message_to_string("hi") == "S"


def test_thinking_and_context_reach_the_template(talk: Any) -> None:
    with talk(thinking_config=ThinkingConfig()) as conversation:
        assert conversation.render_message_to_string("a") == "<a>?"
    with talk(extra_context={"enable_thinking": True}) as conversation:
        assert conversation.render_message_to_string("a") == "<a>?"
        assert conversation.extra_context == {"enable_thinking": True}
    with talk() as conversation:
        conversation.send_message("a", max_output_tokens=1)
        answers = [
            str(conversation.send_message("b", thinking_config=config))
            for config in (ThinkingConfig(enable_thinking=False), ThinkingConfig())
        ]
    assert answers[0] != answers[1]


def test_attributes_that_change_hold_for_the_next_message(talk: Any) -> None:
    with talk() as conversation:
        conversation.extra_context = {"enable_thinking": True}
        assert conversation.render_message_to_string("a") == "<a>?"
        conversation.extra_context = {}
        conversation.thinking_config = ThinkingConfig()
        assert conversation.render_message_to_string("a") == "<a>?"
        conversation.max_output_tokens = 3
        before = conversation.token_count
        conversation.send_message("a")
        assert conversation.token_count - before == 1 + len("<a>?") + 3


def test_configurations_of_one_message(talk: Any) -> None:
    def answer(**options: Any) -> list[int]:
        with talk(max_output_tokens=30, filter_channel_content_from_kv_cache=False) as own:
            own.send_message("hello", **options)
            return own._ids[1 + len("<hello>!") :]

    usual = answer()
    assert len(usual) == 30
    assert len(answer(max_output_tokens=3)) == 3
    banned = SuppressTokensConfig([usual[0]])
    assert usual[0] not in answer(suppress_tokens_config=banned)
    once = answer(no_repeat_ngram_config=NoRepeatNgramConfig(no_repeat_ngram_size=1))
    assert len(set(once)) == len(once) == 30 > len(set(usual))
    penalty = RepetitionPenaltyConfig(presence_penalty=1e6)
    assert answer(repetition_penalty_config=penalty) == once


def test_a_cancelled_answer_leaves_no_trace(talk: Any) -> None:
    with talk(max_output_tokens=100) as conversation:
        conversation.send_message("hello", max_output_tokens=12)
        count = conversation.token_count
        for ends in ("cancel", "close"):
            parts = conversation.send_message_async("tell me more")
            next(parts)
            if ends == "cancel":
                conversation.cancel_process()
                assert len(list(parts)) < 20
            else:
                parts.close()
            assert (conversation.token_count, len(conversation.messages)) == (count, 2)
        assert conversation.send_message("what?", max_output_tokens=12) == WANTED[1]


def test_benchmark_info(talk: Any) -> None:
    with talk() as conversation:
        with pytest.raises(RuntimeError, match="expected send_message before"):
            conversation.get_benchmark_info()
        conversation.send_message("hello")
        info = conversation.get_benchmark_info()
    assert info.last_prefill_token_count == 1 + len("<hello>!")
    assert info.last_decode_token_count == 12
    assert info.last_prefill_tokens_per_second > 0
    prefill = info.last_prefill_token_count / info.last_prefill_tokens_per_second
    assert info.time_to_first_token_in_second > prefill > 0


def test_bundles_without_a_template_have_affixes(tmp_path: Path) -> None:
    def affixes(m: Any) -> None:
        own = m.prompt_templates
        own.user.prefix, own.user.suffix = "<U>", "</U>\n"
        own.model.prefix, own.model.suffix = "<M>", "</M>\n"

    path = tmp_path / "b.litertlm"
    path.write_bytes(language_bundle(None, edit=affixes))
    conversation = Engine(path).create_conversation(messages=[Message.user("a")])
    assert conversation.render_message_to_string("hi") == "<U>a</U>\n<U>hi</U>\n<M>"


def test_mistakes_are_named(talk: Any) -> None:
    with talk() as conversation:
        check_refused(conversation)
    with pytest.raises(RuntimeError, match="the conversation is closed"):
        conversation.send_message("a")
    with pytest.raises(RuntimeError, match="the conversation is closed"):
        _ = conversation.token_count
    with pytest.raises(OptionError, match="lora_config: the engine was opened without LoRA"):
        talk(lora_config=LoraConfig("adapter.tflite"))
    with pytest.raises(TypeError, match="unexpected keyword argument 'tool'"):
        talk(tool=None)
    with pytest.raises(OptionError, match="create_conversation: the engine takes no sounds"):
        talk(messages=[Message.user(Contents.of(Content.AudioFile("a.wav")))])
    with pytest.raises(ModelError, match="chat_template: chat template: syntax error"):
        talk(chat_template="{% for %}")
    talk(tools=[], lora_config=None, automatic_tool_calling=True).close()


def check_refused(conversation: Conversation) -> None:
    with pytest.raises(OptionError, match="send_message: the engine takes no images"):
        conversation.send_message(Contents.of(Content.ImageFile("a.png")))
    with pytest.raises(ValueError, match="max_output_tokens: expected at least 1, got 0"):
        conversation.send_message("a", max_output_tokens=0)
    with pytest.raises(ValueError, match="at most 127 tokens"):
        conversation.send_message("a" * 200)
    assert conversation.messages == []
