"""Where in the user's code a primitive comes from, and the error that says so."""

import os
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

import jax

from jaxdelegate.errors import ConversionError

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (_OURS, str(Path(jax.__file__).parent), *sysconfig.get_paths().values())
)


def user_frame(eqn: Any) -> Any:
    """The innermost frame outside of installed packages, or None."""
    traceback = eqn.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    return next((f for f in frames if _is_users(f.file_name)), None)


def _is_users(file: str) -> bool:
    return not file.startswith(_LIBRARIES) and not file.startswith("<frozen")


def _line(frame: Any) -> str:
    if frame is None:
        return "an unknown line"
    return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"


def refuse(eqn: Any, frame: Any, reason: str, remedy: str) -> NoReturn:
    """Raise the error for a primitive that the file cannot have."""
    raise ConversionError(f"from_jax: {eqn.primitive.name} at {_line(frame)}: {reason}; {remedy}")
