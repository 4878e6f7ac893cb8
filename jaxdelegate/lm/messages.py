"""What is said in a conversation: the messages of `litert_lm`, for texts, images and sounds."""

import base64
import dataclasses
import enum
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from jaxdelegate.errors import OptionError

# The types of contents that an encoder reads, what they are called, and the engine's argument.
KINDS = {"image": ("images", "vision_backend"), "audio": ("sounds", "audio_backend")}


class Role(enum.Enum):
    """Who says a message."""

    SYSTEM = "system"
    USER = "user"
    MODEL = "assistant"
    TOOL = "tool"


class Content:
    """A part of a message: `Content.Text(text)`, `Content.ImageFile(path)`."""

    Text: ClassVar[type["Text"]]
    ImageBytes: ClassVar[type["ImageBytes"]]
    ImageFile: ClassVar[type["ImageFile"]]
    AudioBytes: ClassVar[type["AudioBytes"]]
    AudioFile: ClassVar[type["AudioFile"]]
    ToolResponse: ClassVar[type["ToolResponse"]]

    def to_json(self) -> dict[str, Any]:
        """The part as a dictionary with its `type`."""
        raise TypeError(f"{type(self).__name__} has no form in JSON")


@dataclasses.dataclass
class Text(Content):
    """A text."""

    text: str

    def to_json(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass
class _Bytes(Content):
    bytes: bytes
    _type: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        return {"type": self._type, "blob": base64.b64encode(self.bytes).decode()}


@dataclasses.dataclass
class _File(Content):
    absolute_path: str
    _type: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        return {"type": self._type, "path": self.absolute_path}


class ImageBytes(_Bytes):
    """An image's file."""

    _type = "image"


class ImageFile(_File):
    """The path of an image."""

    _type = "image"


class AudioBytes(_Bytes):
    """A sound's file."""

    _type = "audio"


class AudioFile(_File):
    """The path of a sound."""

    _type = "audio"


@dataclasses.dataclass
class ToolResponse(Content):
    """What a tool returned."""

    name: str
    response: Any

    def to_json(self) -> dict[str, Any]:
        return {"type": "tool_response", "name": self.name, "response": self.response}


Content.Text, Content.ToolResponse = Text, ToolResponse
Content.ImageBytes, Content.ImageFile = ImageBytes, ImageFile
Content.AudioBytes, Content.AudioFile = AudioBytes, AudioFile


class Contents(list[Content]):
    """The parts of a message; as a string, their text."""

    def __init__(self, contents: Iterable[Content] = ()) -> None:
        super().__init__(contents)

    @property
    def contents(self) -> list[Content]:
        """The list itself."""
        return self

    def to_json(self) -> list[dict[str, Any]]:
        """The parts as dictionaries."""
        return [content.to_json() for content in self]

    def __str__(self) -> str:
        return "".join(content.text for content in self if isinstance(content, Text))

    def __repr__(self) -> str:
        return f"Contents({super().__repr__()})"

    @classmethod
    def empty(cls) -> Self:
        """No contents."""
        return cls()

    @classmethod
    def of(cls, *args: str | Content | Sequence[Content]) -> Self:
        """Contents of texts and parts, or of one list of parts.

        Raises:
            TypeError: an argument is something else.
        """
        if len(args) == 1 and isinstance(args[0], Sequence) and not isinstance(args[0], str):
            return cls(args[0])
        found = [Text(a) if isinstance(a, str) else a for a in args]
        wrong = next((a for a in found if not isinstance(a, Content)), None)
        if wrong is not None:
            raise TypeError(f"Contents.of: expected texts and contents, got {type(wrong).__name__}")
        return cls(a for a in found if isinstance(a, Content))


@dataclasses.dataclass
class ToolCall:
    """A call of a tool, by the model."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None
    type: str = "function"

    def to_json(self) -> dict[str, Any]:
        """The call in OpenAI's form, with arguments as an object."""
        call = {"type": self.type, "function": {"name": self.name, "arguments": self.arguments}}
        return call if self.id is None else {**call, "id": self.id}


class Message(dict[str, Any]):
    """What one role says.

    It is the dictionary of its JSON form: `role`, `content`, `channels`, `tool_calls`. The
    attributes are views of it; assign to them to change the message, or change `contents`.
    """

    _read: tuple[Any, Contents] | None = None  # what `contents` was made of, and it

    def __init__(
        self,
        role: Role,
        contents: Contents | None = None,
        tool_calls: Sequence[Any] = (),
        channels: Mapping[str, str] | None = None,
    ) -> None:
        """Create a message.

        Args:
            role: who says it.
            contents: its parts.
            tool_calls: in JSON form, or with a method `to_json`.
            channels: other texts by name, for example the model's reasoning.
        """
        super().__init__()
        self.role = role
        self.contents = Contents() if contents is None else contents
        if tool_calls:
            self["tool_calls"] = [c if isinstance(c, Mapping) else c.to_json() for c in tool_calls]
        self.channels = channels or {}

    @property
    def role(self) -> Role:
        """Who says it; a role that is unknown is the user's, as in `litert_lm`."""
        role = self.get("role", Role.MODEL.value)
        if role == "model":
            return Role.MODEL
        return Role(role) if role in [r.value for r in Role] else Role.USER

    @role.setter
    def role(self, role: Role | str) -> None:
        self["role"] = role.value if isinstance(role, Role) else role

    @property
    def contents(self) -> Contents:
        """Its parts; `to_json` and `send_message` see what is changed in them."""
        content = self.get("content")
        if self._read is None or self._read[0] is not content:
            self._read = content, _contents(content)
        return self._read[1]

    @contents.setter
    def contents(self, contents: Contents) -> None:
        self._set("content", contents.to_json())
        self._read = self.get("content"), contents

    @property
    def tool_calls(self) -> list[Any]:
        """What tools the model calls, in JSON form."""
        return list(self.get("tool_calls", ()))

    @property
    def channels(self) -> dict[str, str]:
        """A copy of the other texts, by name."""
        return dict(self.get("channels") or {})

    @channels.setter
    def channels(self, channels: Mapping[str, str]) -> None:
        self._set("channels", dict(channels))

    def _set(self, key: str, value: Any) -> None:
        if value:
            self[key] = value
        else:
            self.pop(key, None)

    def to_json(self) -> dict[str, Any]:
        """The message as a dictionary."""
        contents = self.contents
        if contents != _contents(self.get("content")):
            self.contents = contents
        return dict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The message of a dictionary."""
        message = cls(Role.MODEL)
        message.clear()
        message.update(data)
        return message

    @classmethod
    def system(cls, text_or_contents: str | Contents) -> Self:
        """What the model reads before the conversation."""
        return cls(Role.SYSTEM, Contents.of(text_or_contents))

    @classmethod
    def user(cls, text_or_contents: str | Contents) -> Self:
        """What the user says."""
        return cls(Role.USER, Contents.of(text_or_contents))

    @classmethod
    def model(
        cls,
        contents: Contents | None = None,
        tool_calls: Sequence[Any] = (),
        channels: Mapping[str, str] | None = None,
    ) -> Self:
        """What the model says."""
        return cls(Role.MODEL, contents, tool_calls, channels)

    @classmethod
    def tool(cls, contents: Contents) -> Self:
        """What a tool returned."""
        return cls(Role.TOOL, contents)

    def __str__(self) -> str:
        return str(self.contents)

    def __repr__(self) -> str:
        return (
            f"Message(role={self.role!r}, contents={self.contents!r}, "
            f"tool_calls={self.tool_calls!r}, channels={self.channels!r})"
        )


AnyMessage = str | Contents | Message | Mapping[str, Any]


def _contents(content: Any) -> Contents:
    parts = [content] if isinstance(content, str) else content or ()
    return Contents(c for c in map(_content, parts) if c is not None)


def _content(part: Any) -> Content | None:
    """A part from its JSON form; None: its type is unknown."""
    if isinstance(part, str):
        return Text(part)
    kind = part.get("type")
    if kind == "text":
        return Text(part.get("text", ""))
    if kind == "tool_response":
        return ToolResponse(part.get("name", ""), part.get("response"))
    if kind not in KINDS:
        return None
    if "path" in part:
        return ImageFile(part["path"]) if kind == "image" else AudioFile(part["path"])
    blob = base64.b64decode(part.get("blob", ""))
    return ImageBytes(blob) if kind == "image" else AudioBytes(blob)


def sent(message: AnyMessage, method: str, kinds: Collection[str] = ()) -> dict[str, Any]:
    """A message that a user sends, as templates see it.

    Args:
        message: the message.
        method: for messages of errors.
        kinds: those of `KINDS` that it may have.

    Raises:
        OptionError: it has something else than texts and what it may have.
        TypeError: it is not a message.
    """
    if isinstance(message, str):
        message = {"role": "user", "content": message}
    elif isinstance(message, Message):
        message = message.to_json()
    elif isinstance(message, Contents):
        message = {"role": "user", "content": message.to_json()}
    elif not isinstance(message, Mapping):
        raise TypeError(
            f"{method}: expected a str, Contents, Message or dict, got {type(message).__name__}"
        )
    # LiteRT-LM sorts the keys of these, which a template may show.
    return stated(json.loads(json.dumps(message, sort_keys=True)), method, kinds)


def stated(message: Mapping[str, Any], method: str, kinds: Collection[str] = ()) -> dict[str, Any]:
    """A message with a list of contents: texts, images, sounds, results of tools. As `sent`."""
    message = message.to_json() if isinstance(message, Message) else message
    if not isinstance(message.get("role"), str):
        raise TypeError(f"{method}: expected a message with a role, got {message!r}")
    content = message.get("content", ())
    parts = [content] if isinstance(content, str) else list(content)
    typed = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    for part in typed:
        kind = part.get("type")
        is_known = kind == "tool_response" or (kind == "text" and isinstance(part.get("text"), str))
        if kind in KINDS and kind not in kinds:
            nouns, argument = KINDS[kind]
            raise OptionError(
                f"{method}: the engine takes no {nouns}: open it with {argument}=Backend.CPU(), or "
                "another one"
            )
        if not is_known and kind not in KINDS:
            raise OptionError(f"{method}: contents of type {kind!r} are not supported; send text")
    calls = [_stated_call(call, method) for call in message.get("tool_calls") or ()]
    return {**message, "content": typed, **({"tool_calls": calls} if calls else {})}


def _stated_call(call: Any, method: str) -> dict[str, Any]:
    """A call whose arguments are an object."""
    call = call.to_json() if isinstance(call, ToolCall) else call
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TypeError(f"{method}: expected a call with a function's name, got {call!r}")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message that `stated` returned."""
    return "".join(part.get("text", "") for part in message["content"])
