"""Write the table of `litert_lm`'s public names in docs/api/lm.md; needs `litert-lm-api`."""

import dataclasses
import enum
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxdelegate import lm
from jaxdelegate.lm.unsupported import CLASSES, WITHOUT_EFFECT

VERSION = "0.18.1"
PAGE = Path(__file__).parent / "api" / "lm.md"
BEGIN, END = "<!-- table: docs/generate_litert_lm.py -->", "<!-- end of table -->"
MODULES = (
    "benchmark", "conversation", "embedding_engine", "engine", "interfaces", "model_info",
    "session", "tools", "utils",
)  # fmt: skip
# Classes that an attribute of another one names.
INNER = {
    "Backend": ("CPU", "GPU", "NPU"),
    "Content": ("Text", "ImageBytes", "ImageFile", "AudioBytes", "AudioFile", "ToolResponse"),
}
_REFUSED = "an `OptionError`, unless it is None or empty"
_MADE = "`Engine` creates it"
# What differs, and why: by name, and by name and parameter or member.
WHY = {
    "utils": "calls the C library",
    "LiteRtLmBackendType": CLASSES["LiteRtLmBackendType"],
    "LiteRtLmNpuBrand": CLASSES["LiteRtLmNpuBrand"],
    "Backend.NPU": "an `OptionError`: NPUs are not supported",
    "ModelInfo.npu_brand_for_modality": "an `OptionError`: NPUs are not supported",
    "ModelInfo.soc_name_for_modality": "an `OptionError`: NPUs are not supported",
    "Conversation": _MADE,
    "Session": _MADE,
    "EmbeddingCapability": "`ModelInfo` creates it",
    "LlmCapability": "`ModelInfo` creates it",
    "LoraConfig": "yes; `audio_lora_path`: an `OptionError`",
    "LoraRankConfig": "yes; `audio_lora_rank`: an `OptionError`",
} | dict.fromkeys(
    (
        "max_num_images", "vision_backend", "audio_backend", "vision_tokens_per_image",
    ),
    _REFUSED,
)  # fmt: skip


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def table() -> str:
    """A row for each public name and method."""
    theirs: Any = importlib.import_module("litert_lm")
    rows = [*_modules(), *(row for name in theirs.__all__ for row in _rows(theirs, name))]
    return "\n".join(["| in `litert_lm` | here |", "|---|---|", *rows]) + "\n"


def _modules() -> Iterator[str]:
    for name in MODULES:
        is_here = importlib.util.find_spec(f"jaxdelegate.lm.{name}") is not None
        yield f"| module `{name}` | {'yes' if is_here else f'no: {WHY[name]}'} |"


def _rows(theirs: Any, name: str) -> Iterator[str]:
    there, here = getattr(theirs, name), getattr(lm, name, None)
    yield _row(name, there, here)
    if here is None or not inspect.isclass(there):
        return
    for inner in INNER.get(name, ()):
        yield _row(f"{name}.{inner}", getattr(there, inner), getattr(here, inner))
    for member in _methods(there):
        yield _row(f"{name}.{member}", getattr(there, member), getattr(here, member, None))


def _methods(kind: type) -> list[str]:
    base = next((b for b in (dict, list, int) if issubclass(kind, b)), object)
    return [
        name
        for name, value in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_") and not hasattr(base, name)
    ]


def _row(name: str, there: Any, here: Any) -> str:
    shown = f"`{name}{_parameters(there)}`"
    if here is None:
        return f"| {shown} | no: {WHY[name]} |"
    return f"| {shown} | {'; '.join(_notes(name, there, here)) or 'yes'} |"


def _parameters(value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return ": " + ", ".join(member.name for member in value)
    return f"({', '.join(_named(value))})" if callable(value) else ""


def _named(value: Any) -> list[str]:
    """Parameters as in a call; those after `*` have names."""
    shown, is_named = list[str](), False
    for parameter in _signature(value):
        if parameter.kind == parameter.KEYWORD_ONLY and not is_named:
            shown, is_named = [*shown, "*"], True
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        is_named |= parameter.kind == parameter.VAR_POSITIONAL
        shown.append(mark.get(parameter.kind, "") + parameter.name)
    return shown


def _signature(value: Any) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(value).parameters.values() if p.name != "self"]


def _notes(name: str, there: Any, here: Any) -> Iterator[str]:
    """What differs."""
    if name in WHY:
        yield WHY[name]
    elif inspect.isclass(there) and issubclass(there, enum.Enum):
        if {m.name: m.value for m in there} != {m.name: m.value for m in here}:
            raise ValueError(f"{name}: other members")
    elif callable(there):
        yield from _of_parameters(there, here)
    if inspect.isclass(there):
        for member in sorted(_attributes(there) - _attributes(here)):
            yield f"no `{member}`: {WHY[f'{name}.{member}']}"


def _of_parameters(there: Any, here: Any) -> Iterator[str]:
    theirs = {p.name: p for p in _signature(there) if p.kind != p.VAR_KEYWORD}
    ours = {p.name: p for p in _signature(here)}
    missing = [name for name in theirs if name not in ours]
    for why in dict.fromkeys(map(_why, missing)):
        names = ", ".join(f"`{name}`" for name in missing if _why(name) == why)
        yield f"{names}: {why}"
    more = [f"`{n}`" for n, p in ours.items() if n not in theirs and p.kind != p.VAR_KEYWORD]
    if more:
        yield f"also {', '.join(more)}"
    named = [n for n, p in ours.items() if n in theirs and p.kind > theirs[n].kind]
    if named:
        yield f"by name: {', '.join(f'`{name}`' for name in named)}"
    for n, p in ours.items():
        if n in theirs and repr(p.default) != repr(theirs[n].default):
            yield f"the default of `{n}` is {p.default!r}"


def _why(parameter: str) -> str:
    return "without effect" if parameter in WITHOUT_EFFECT else WHY[parameter]


def _attributes(kind: type) -> set[str]:
    """Names of attributes and methods, also of those that `__init__` sets."""
    found = {name for name in dir(kind) if not name.startswith("_")}
    for base in inspect.getmro(kind)[:-1]:
        if dataclasses.is_dataclass(base):
            found |= {field.name for field in dataclasses.fields(base)}
        if base.__module__.startswith(("litert_lm", "jaxdelegate")):
            found |= set(re.findall(r"self\.([a-z]\w*)(?=.* = )", inspect.getsource(base)))
    return found


if __name__ == "__main__":
    if (found := importlib.metadata.version("litert-lm-api")) != VERSION:
        raise SystemExit(f"expected litert-lm-api {VERSION}, got {found}")
    PAGE.write_text(page(PAGE.read_text()))
