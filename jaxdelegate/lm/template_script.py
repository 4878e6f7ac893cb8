"""Renders chat templates in the process of child.py. It does not import the package: see there."""

import datetime
import functools
import json
import re
from typing import Any, NoReturn

# Steps and characters of a rendering; a template of a page takes some thousands.
_FUEL = 10_000_000
_MOST_CHARACTERS = 16 << 20
_NAME = "chat"
_MARKS = re.compile(r"{%-?\s*(?:end)?generation\s*-?%}")  # for training only


def answer(question: dict[str, Any]) -> str:
    """The text of the template `source` with `variables`; None: it is only parsed."""
    environment, variables = _environment(question["source"]), question["variables"]
    if variables is None:
        return ""
    text = environment.render_template(_NAME, **{k: _shown(v) for k, v in variables.items()})
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(
            f"expected a text of at most {_MOST_CHARACTERS} characters, got {len(text)}"
        )
    return str(text)


@functools.lru_cache(maxsize=16)
def _environment(source: str) -> Any:
    import minijinja  # noqa: PLC0415 (only the child runs it)

    environment = minijinja.Environment(
        fuel=_FUEL,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalizer=_printed,
        auto_escape_callback=lambda name: False,  # noqa: ARG005 (not HTML)
    )
    environment.add_filter("tojson", _json)
    environment.add_filter("lstrip", lambda text, *chars: text.lstrip(*chars))
    environment.add_filter("rstrip", lambda text, *chars: text.rstrip(*chars))
    environment.add_test("none", lambda value: value is None)  # undefined values, too
    environment.add_global("raise_exception", _refuse)
    environment.add_global("strftime_now", _date)
    environment.add_template(_NAME, _MARKS.sub("", source))
    return environment


class _RefusedError(Exception):
    """What a template says by `raise_exception`."""


def _refuse(message: str = "") -> NoReturn:
    raise _RefusedError(message)


def _date(form: str) -> str:
    return datetime.datetime.now(datetime.UTC).strftime(form)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


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
    if isinstance(value, dict):
        return _Dict({k: _shown(v) for k, v in value.items()})
    return _List(map(_shown, value)) if isinstance(value, list) else value


def _printed(value: Any) -> Any:
    """What minijinja prints; NotImplemented: as it does itself. It passes 1.0 as 1."""
    if isinstance(value, bool):
        return _debug(value)
    return str(value) if isinstance(value, float) else NotImplemented


def _debug(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    names = {True: "true", False: "false", None: "none"}
    return names[value] if value is None or isinstance(value, bool) else str(value)


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def _quoted(text: str) -> str:
    found = [_ESCAPES.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}") for c in text]
    return '"' + "".join(found) + '"'
