"""Chat templates: messages to the text that a model continues.

Source: LiteRT-LM 0.18 (runtime/components/prompt_template.cc, rust/minijinja_template.rs).
"""

import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from jaxdelegate.bundles.metadata import Affixes
from jaxdelegate.errors import ModelError
from jaxdelegate.lm.child import Child, EndedError, RefusedError
from jaxdelegate.lm.messages import text_of
from jaxdelegate.optional import optional_module
from jaxdelegate.text import printable

JsonMessage = Mapping[str, Any]

_MOST_SOURCE_CHARACTERS = 1 << 20
# A template of a page takes a thousandth of the time.
CHILD = Child("template_script.py", seconds=4, stack_bytes=1 << 23, memory_bytes=1 << 30)


class _HostileError(ModelError):
    """A template crashed the process that renders it, or did not end."""


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
    """A template in Jinja. It is untrusted: it runs in a process of its own, and reads no files."""

    def __init__(self, source: str, where: str) -> None:
        """`where` names it in messages.

        Raises:
            ModelError: it is damaged.
            OptionError: minijinja is not installed.
        """
        self._source, self._where = source, where
        if len(source) > _MOST_SOURCE_CHARACTERS:
            self._fail(f"expected at most {_MOST_SOURCE_CHARACTERS} characters, got {len(source)}")
        self._rendered(None)

    def render(
        self, messages: Sequence[JsonMessage], context: Mapping[str, Any], *, ends: bool
    ) -> str:
        """See `ChatTemplate`."""
        now = datetime.datetime.now(datetime.UTC)
        # LiteRT-LM adds the start token itself, so its templates see an empty one.
        return self._rendered(
            {
                "bos_token": "", "eos_token": "", "now": int(now.timestamp()),
                "messages": list(messages), "add_generation_prompt": ends, **context,
            }
        )  # fmt: skip

    def _rendered(self, variables: Mapping[str, Any] | None) -> str:
        optional_module("minijinja", "lm")
        try:
            return str(CHILD.answer({"source": self._source, "variables": variables}))
        except RefusedError as error:
            self._fail(str(error))
        except EndedError as error:
            self._fail(_how_it_ended(error), _HostileError)
        except (RecursionError, TypeError, ValueError) as error:
            self._fail(f"expected variables with a form in JSON: {error}")

    def _fail(self, problem: str, kind: type[ModelError] = ModelError) -> NoReturn:
        raise kind(f"{printable(self._where)}: chat template: {printable(problem)}")


def _how_it_ended(error: EndedError) -> str:
    if error.is_late:
        return f"it takes longer than {CHILD.seconds} s"
    return (
        f"it crashes the process that renders it ({error}): it nests too deeply, or takes too much "
        "memory"
    )


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
_PRINTED = f'"{_PROBE}"'  # as a list's text is printed
# A message of each role, among those that templates expect around it.
_AMONG = {
    "user": ("user",),
    "system": ("system", "user"),
    "assistant": ("user", "assistant", "user"),
    "tool": ("user", "assistant", "tool"),
}


class Renderer:
    """A template, and which roles' contents it gets as texts instead of lists of parts."""

    def __init__(self, template: ChatTemplate, has_text_contents: bool | None = None) -> None:
        """None: texts for roles that need them; all lists if it shows a user's, as in LiteRT-LM."""
        self._template = template
        self._has_text_contents = has_text_contents
        self._may_show_lists = True
        self._needs: dict[str, bool] = {}

    def without_lists(self) -> "Renderer":
        """One that passes texts to a template which would show a list in its Python form."""
        other = Renderer(self._template, self._has_text_contents)
        other._may_show_lists = False
        return other

    @functools.cached_property
    def shows_tools(self) -> bool:
        """Whether the template shows the variable `tools`."""
        tool = {"type": "function", "function": {"name": _PROBE, "parameters": {}}}
        user = {"role": "user", "content": _parts("other")}
        try:
            return _PROBE in self.render([user], {"tools": [tool]}, ends=True)
        except ModelError:
            return False

    def render(
        self, messages: Sequence[JsonMessage], context: Mapping[str, Any], *, ends: bool
    ) -> str:
        """See `ChatTemplate`; the messages are those that `stated` returns."""
        return self._template.render([*map(self._as_needed, messages)], context, ends=ends)

    def _as_needed(self, message: JsonMessage) -> JsonMessage:
        is_text = self._needs_text(message["role"])
        return {**message, "content": text_of(message)} if is_text else message

    def _needs_text(self, role: str) -> bool:
        if self._has_text_contents is not None:
            return self._has_text_contents
        if role not in _AMONG:
            return self._needs_text("user")
        if role not in self._needs:
            self._needs[role] = self._found_to_need_text(role)
        return self._needs[role]

    def _found_to_need_text(self, role: str) -> bool:
        of_text, of_list = self._probed(role, _PROBE), self._probed(role, _parts(_PROBE))
        if _PROBE not in of_text:
            return _PROBE not in of_list and role != "user" and self._needs_text("user")
        if _PROBE not in of_list:
            return True
        return _PRINTED in of_list and not self._shows_lists

    @functools.cached_property
    def _shows_lists(self) -> bool:
        return self._may_show_lists and _PRINTED in self._probed("user", _parts(_PROBE))

    def _probed(self, role: str, content: Any) -> str:
        messages = [
            {"role": role, "content": content} if name == role
            else self._as_needed({"role": name, "content": _parts("other")})
            for name in _AMONG[role]
        ]  # fmt: skip
        try:
            return self._template.render(messages, {}, ends=True)
        except _HostileError:
            raise
        except ModelError:
            return ""


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
