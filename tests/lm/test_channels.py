"""Answers are split into channels, however their text arrives."""

import itertools

import pytest

from jaxdelegate.bundles.metadata import Channel
from jaxdelegate.lm.channels import ChannelReader

THOUGHT = Channel("thought", "<think>", "</think>", is_reasoning=True)
CODE = Channel("code", "```", "```", is_reasoning=False)
ENDLESS = Channel("rest", "<rest>", "", is_reasoning=False)

CASES = [
    ("", "a<think>b</think>c", [(None, "a"), ("thought", "b"), (None, "c")]),
    ("", "<think>b</think>", [("thought", "b")]),
    ("", "a<think>b", [(None, "a"), ("thought", "b")]),
    ("", "a<thin", [(None, "a<thin")]),
    ("", "</think>a", [(None, "</think>a")]),
    ("", "<think>a</thin", [("thought", "a</thin")]),
    ("", "<think>a```b</think>```c```", [("thought", "a```b"), ("code", "c")]),
    ("", "```a``````b```", [("code", "ab")]),
    ("<think>x</think><think>\n", "b</think>c", [("thought", "b"), (None, "c")]),
    ("<think>x</think>", "b", [(None, "b")]),
    ("", "<rest>a<think>", [("rest", "a<think>")]),
    ("", "", []),
]


ONLY_FIRST = [
    ("", "<think>a</think>b<think>c</think>", [("thought", "a"), (None, "b<think>c</think>")]),
    ("", "<think>a</think><think>c", [("thought", "a"), (None, "<think>c")]),
    ("", "b<think>c", [(None, "b<think>c")]),
    ("<think>", "a</think>```c```", [("thought", "a"), (None, "```c```")]),
]


def read(
    prompt: str, parts: list[str], *, is_only_first: bool = False
) -> list[tuple[str | None, str]]:
    """The channels' names and texts, joined where neighbours have one channel."""
    reader = ChannelReader([THOUGHT, CODE, ENDLESS], prompt, is_only_first=is_only_first)
    found = [*itertools.chain.from_iterable(map(reader.add, parts)), *reader.end()]
    assert all(text for _, text in found)
    names = [(None if channel is None else channel.name, text) for channel, text in found]
    grouped = itertools.groupby(names, key=lambda pair: pair[0])
    return [(name, "".join(text for _, text in pairs)) for name, pairs in grouped]


@pytest.mark.parametrize(("prompt", "text", "want"), CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_channels(prompt: str, text: str, want: list[tuple[str | None, str]], size: int) -> None:
    assert read(prompt, [text[i : i + size] for i in range(0, len(text), size)]) == want


def test_text_is_not_held_back() -> None:
    reader = ChannelReader([THOUGHT], "")
    assert list(reader.add("abc")) == [(None, "abc")]
    assert list(reader.add("d<th")) == [(None, "d")]
    assert list(reader.add("e")) == [(None, "<the")]
    assert list(reader.add("<think>")) == []
    assert list(reader.add("f")) == [(THOUGHT, "f")]


@pytest.mark.parametrize(("prompt", "text", "want"), ONLY_FIRST)
def test_an_answer_may_have_the_first_channel_only(
    prompt: str, text: str, want: list[tuple[str | None, str]]
) -> None:
    assert read(prompt, [text], is_only_first=True) == want
    assert read(prompt, list(text), is_only_first=True) == want
