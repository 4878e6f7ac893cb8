"""Where in the user's code a primitive comes from, and the error that says so."""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Place:
    """What is being written: a primitive, and the line of the user's code that calls it."""

    primitive: str = ""
    scope: str = ""  # of the names of its tensors
    frame: Any = None

    def of(self, eqn: Any) -> "Place":
        """The place of an equation inside of this one."""
        frame = _user_frame(eqn) or self.frame
        function = "" if frame is None else frame.function_name.rsplit(".", 1)[-1].strip("<>")
        scope = "/".join(part for part in (str(eqn.source_info.name_stack), function) if part)
        return Place(eqn.primitive.name, scope or self.scope, frame)

    def refuse(self, reason: str, remedy: str) -> NoReturn:
        """Raise the error for a primitive that the file cannot have."""
        line = "an unknown line"
        if self.frame is not None:
            line = f"{self.frame.file_name}:{self.frame.line_num} ({self.frame.function_name})"
        raise ConversionError(f"from_jax: {self.primitive} at {line}: {reason}; {remedy}")


def _user_frame(eqn: Any) -> Any:
    """The innermost frame outside of installed packages, or None."""
    traceback = eqn.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    return next((f for f in frames if _is_users(f.file_name)), None)


def _is_users(file: str) -> bool:
    return not file.startswith((*_LIBRARIES, "<frozen"))
