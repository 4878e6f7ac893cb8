"""Messages, as `litert_lm` has them; its results were recorded with version 0.18.1."""

from typing import Any

import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.lm import Content, Contents, Message, Role
from jaxdelegate.lm.messages import sent, stated

MEDIA: list[tuple[Content, dict[str, Any]]] = [
    (Content.ImageBytes(b"ab"), {"type": "image", "blob": "YWI="}),
    (Content.ImageFile("/a.png"), {"type": "image", "path": "/a.png"}),
    (Content.AudioBytes(b"ab"), {"type": "audio", "blob": "YWI="}),
    (Content.AudioFile("/a.wav"), {"type": "audio", "path": "/a.wav"}),
    (Content.ToolResponse("f", 3), {"type": "tool_response", "name": "f", "response": 3}),
]


def test_a_message_is_its_json() -> None:
    message = Message.user("hi")
    assert message == {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert message.to_json() == dict(message)
    assert str(message) == "hi"
    assert message.role is Role.USER
    message.contents = Contents.of("a", Content.Text("b"))
    message.channels = {"thought": "t"}
    assert str(message) == "ab"
    assert message["channels"] == message.channels == {"thought": "t"}
    message.contents, message.channels = Contents.empty(), {}
    assert message == {"role": "user"}


def test_constructors_name_the_role() -> None:
    contents = Contents.of("x")
    made = [Message.system("x"), Message.user(contents), Message.model(contents)]
    made.append(Message.tool(contents))
    assert [m.role for m in made] == [Role.SYSTEM, Role.USER, Role.MODEL, Role.TOOL]
    assert [str(m) for m in made] == ["x"] * 4
    assert Message.model(tool_calls=[{"name": "f"}]).tool_calls == [{"name": "f"}]


def test_from_json_keeps_everything() -> None:
    data = {"role": "model", "content": "text", "name": "n", "reasoning_content": "r"}
    message = Message.from_json(data)
    assert message.to_json() == data
    assert (message.role, str(message)) == (Role.MODEL, "text")
    assert Message.from_json({"role": "critic"}).role is Role.USER
    assert Message.from_json({}).role is Role.MODEL
    assert Message.from_json({"content": ["a", {"type": "film"}]}).contents == [Content.Text("a")]


@pytest.mark.parametrize(("content", "data"), MEDIA)
def test_other_contents_are_read_and_written_but_not_sent(
    content: Content, data: dict[str, Any]
) -> None:
    message = Message.user(Contents.of("see", content))
    assert message["content"][1] == data
    assert message.contents[1] == content
    assert str(message) == "see"
    if data["type"] == "tool_response":
        assert sent(message, "send_message")["content"][1] == data
        return
    nouns = {"image": "images", "audio": "sounds"}[data["type"]]
    with pytest.raises(OptionError, match=f"send_message: the engine takes no {nouns}"):
        sent(message, "send_message")
    assert sent(message, "send_message", [data["type"]])["content"][1] == data


def test_contents_of() -> None:
    parts = [Content.Text("a"), Content.Text("b")]
    assert Contents.of(parts) == Contents.of("a", "b") == Contents(parts)
    assert Contents.of() == Contents.empty() == []
    assert str(Contents.of("a", "b")) == "ab"
    assert Contents(parts).contents == parts
    assert repr(Contents.of("a")) == "Contents([Text(text='a')])"
    with pytest.raises(TypeError, match="expected texts and contents, got int"):
        Contents.of("a", 3)  # type: ignore[arg-type]


def test_sent_messages_have_lists_of_texts() -> None:
    want = {"content": [{"type": "text", "text": "hi"}], "role": "user"}
    for message in ("hi", Contents.of("hi"), Message.user("hi"), {"role": "user", "content": "hi"}):
        assert sent(message, "m") == want
    assert list(sent("hi", "m")) == ["content", "role"]
    assert list(stated({"role": "user", "content": "hi"}, "m")) == ["role", "content"]


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match="m: expected a str, Contents, Message or dict, got int"):
        sent(3, "m")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="m: expected a message with a role"):
        stated({"content": "hi"}, "m")
    with pytest.raises(TypeError, match="m: expected a call with a function's name"):
        stated({"role": "assistant", "tool_calls": [{"name": "f"}]}, "m")


def test_contents_are_changed_in_place() -> None:
    message = Message.user("a")
    message.contents.append(Content.Text("b"))
    want = {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}
    assert message.to_json() == message == want
    assert sent(message, "m")["content"] == stated(message, "m")["content"] == want["content"]
    assert str(message) == "ab"
    message["content"] = "c"
    assert (str(message), message.to_json()["content"]) == ("c", "c")
    parts = Contents(contents=[])
    empty = Message(Role.USER, parts)
    parts.append(Content.Text("d"))
    assert empty.to_json()["content"] == [{"type": "text", "text": "d"}]
    unknown = Message.from_json({"content": [{"type": "film"}]})
    assert unknown.to_json() == {"content": [{"type": "film"}]}


@pytest.mark.parametrize("role", ["user", Role.USER])
def test_a_role_is_set_by_name(role: Role | str) -> None:
    message = Message.model(Contents.of("a"))
    message.role = role
    assert (message["role"], message.role) == ("user", Role.USER)
