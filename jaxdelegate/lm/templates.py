"""Chat templates: messages to the text that a model continues.

Source: LiteRT-LM 0.18 (runtime/components/prompt_template.cc, rust/minijinja_template.rs).
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from jaxdelegate.bundles.metadata import Affixes
from jaxdelegate.errors import ModelError
from jaxdelegate.lm.messages import text_of
from jaxdelegate.optional import optional_module
from jaxdelegate.text import printable

JsonMessage = Mapping[str, Any]

# Steps and characters of a rendering; a template of a page takes some thousands.
_FUEL = 10_000_000
_MOST_CHARACTERS = 16 << 20
_MOST_SOURCE_CHARACTERS = 1 << 20
# minijinja pads to any width that a text names, and ends the process if memory does not suffice.
_FORMAT = re.compile(r"[.|]\s*format\b")
_MARKS = re.compile(r"{%-?\s*(?:end)?generation\s*-?%}")  # for training only


class ChatTemplate(Protocol):
    """Renders messages."""

    def render(
        self, messages: Sequence[JsonMessage], context: Mapping[str, Any], *, ends: bool
    ) -> str:
        """The text of messages.

        Args:
            messages: with `role` and `content`, a list of parts.
            context: more variables.
            ends: whether the text ends where the model's answer begins.

        Raises:
            ModelError: the template is damaged, refuses the messages, or takes too long.
        """
        ...


class JinjaTemplate:
    """A template in Jinja. It is untrusted: it reads no files, and its steps are limited."""

    def __init__(self, source: str, where: str) -> None:
        """`where` names it in messages.

        Raises:
            ModelError: it is damaged.
            OptionError: minijinja is not installed.
        """
        self._where = where
        if len(source) > _MOST_SOURCE_CHARACTERS:
            self._fail(f"expected at most {_MOST_SOURCE_CHARACTERS} characters, got {len(source)}")
        if _FORMAT.search(source):
            self._fail("format is not supported: it may take any amount of memory")
        package = optional_module("minijinja", "lm")
        self._error: type[Exception] = package.TemplateError
        self._environment = _environment(package)
        try:
            self._environment.add_template("chat", _MARKS.sub("", source))
        except self._error as error:
            self._fail(_first_line(error))

    def render(
        self, messages: Sequence[JsonMessage], context: Mapping[str, Any], *, ends: bool
    ) -> str:
        """See `ChatTemplate`."""
        now = datetime.datetime.now(datetime.UTC)
        # LiteRT-LM adds the start token itself, so its templates see an empty one.
        variables = {
            "bos_token": "", "eos_token": "", "now": int(now.timestamp()), **context
        }  # fmt: skip
        try:
            text = self._environment.render_template(
                "chat",
                messages=_shown(list(messages)),
                add_generation_prompt=ends,
                **{name: _shown(value) for name, value in variables.items()},
            )
        except (self._error, *_RAISED) as error:
            self._fail(_first_line(error))
        if len(text) > _MOST_CHARACTERS:
            self._fail(f"expected a text of at most {_MOST_CHARACTERS} characters, got {len(text)}")
        return str(text)

    def _fail(self, problem: str) -> NoReturn:
        raise ModelError(f"{printable(self._where)}: chat template: {printable(problem)}")


class AffixTemplate:
    """Texts around what each role says, in bundles without a template in Jinja."""

    def __init__(self, affixes: Mapping[str, Affixes]) -> None:
        self._affixes = affixes

    def render(
        self, messages: Sequence[JsonMessage], context: Mapping[str, Any], *, ends: bool
    ) -> str:
        """See `ChatTemplate`."""
        del context
        said = [self._said(message) for message in messages]
        return "".join(said) + (self._of("model").prefix if ends else "")

    def _said(self, message: JsonMessage) -> str:
        own, content = self._of(message["role"]), message["content"]
        parts = [content] if isinstance(content, str) else [part["text"] for part in content]
        return own.prefix + "".join(parts) + own.suffix

    def _of(self, role: str) -> Affixes:
        role = "model" if role == "assistant" else role
        return self._affixes.get(role, Affixes("", ""))


_PROBE = "probe"
_PARTS = [{"type": "text", "text": _PROBE}]


class Renderer:
    """A template, and whether it gets a message's content as a text or as a list of parts."""

    def __init__(self, template: ChatTemplate, has_text_contents: bool | None = None) -> None:
        """None: as a list, as in LiteRT-LM, unless the template shows texts only."""
        self._template = template
        if has_text_contents is None:
            has_text_contents = not self._shows(_PARTS) and self._shows(_PROBE)
        self._is_text = has_text_contents

    def without_lists(self) -> "Renderer":
        """One that passes texts to a template which would show a list in its Python form."""
        is_shown = self._shows(_PARTS, str(_shown(_PARTS)))
        return Renderer(self._template, has_text_contents=self._is_text or is_shown)

    def render(
        self, messages: Sequence[JsonMessage], context: Mapping[str, Any], *, ends: bool
    ) -> str:
        """See `ChatTemplate`; the messages are those that `stated` returns."""
        if self._is_text:
            messages = [{**m, "content": text_of(m)} for m in messages]
        return self._template.render(messages, context, ends=ends)

    def _shows(self, content: Any, text: str = _PROBE) -> bool:
        message = {"role": "user", "content": content}
        try:
            return text in self._template.render([message], {}, ends=True)
        except ModelError:
            return False


class _RefusedError(Exception):
    """What a template says by `raise_exception`."""


# By the functions below, for values of other types.
_RAISED = (_RefusedError, AttributeError, OverflowError, RecursionError, TypeError, ValueError)


def _environment(package: Any) -> Any:
    environment = package.Environment(
        fuel=_FUEL,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalizer=_as_in_rust,
        auto_escape_callback=lambda name: False,  # noqa: ARG005 (not HTML)
    )
    environment.add_filter("tojson", _json)
    environment.add_filter("lstrip", lambda text, *chars: text.lstrip(*chars))
    environment.add_filter("rstrip", lambda text, *chars: text.rstrip(*chars))
    environment.add_test("none", lambda value: value is None)  # undefined values, too
    environment.add_function("raise_exception", _refuse)
    environment.add_function("strftime_now", _date)
    return environment


def _refuse(message: str = "") -> NoReturn:
    raise _RefusedError(message)


def _date(form: str) -> str:
    return datetime.datetime.now(datetime.UTC).strftime(form)


def _json(value: Any, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# ---- values as minijinja shows them in Rust, where LiteRT-LM runs it


class _Dict(dict[str, Any]):
    def __repr__(self) -> str:
        return "{" + ", ".join(f"{_quoted(k)}: {_debug(v)}" for k, v in self.items()) + "}"

    __str__ = __repr__


class _List(list[Any]):
    def __repr__(self) -> str:
        return "[" + ", ".join(map(_debug, self)) + "]"

    __str__ = __repr__


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _Dict({str(k): _shown(v) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return _List(map(_shown, value))
    return value


def _as_in_rust(value: Any) -> Any:
    if value is None:  # undefined, too
        return ""
    return _debug(value) if isinstance(value, bool) else value


def _debug(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    names = {True: "true", False: "false", None: "none"}
    return names[value] if value is None or isinstance(value, bool) else str(value)


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def _quoted(text: str) -> str:
    found = [_ESCAPES.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}") for c in text]
    return '"' + "".join(found) + '"'
