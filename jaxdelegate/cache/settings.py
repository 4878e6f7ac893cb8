"""JAX's settings as a part of keys, also for a process that has not imported jax.

Such a process has the settings that jax would read from the environment. They are stored in the
directory under a digest of the environment and jax's version, by a process that imported jax and
did not change them.
"""

import contextlib
import re

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.environment import versions
from jaxdelegate.cache.key import Part
from jaxdelegate.pjrt import jax_settings

SUFFIX = ".settings"
_DIGEST = re.compile(r"[0-9a-f]{32}")


def settings_part(directory: PrivateDirectory) -> Part | None:
    """The part of a key; None: jax is not imported, and its settings are not stored."""
    name = Part.of([versions("cpu"), jax_settings.of_environment()]).digest + SUFFIX
    if not jax_settings.is_jax_imported():
        return _read(directory, name)
    part = Part.of(jax_settings.current())
    if jax_settings.are_of_environment() and _read(directory, name) != part:
        with contextlib.suppress(OSError):  # storing the program will warn of it
            directory.write(name, [f"{part.digest} {part.text}".encode()])
    return part


def _read(directory: PrivateDirectory, name: str) -> Part | None:
    try:
        digest, _, text = directory.read(name).decode().partition(" ")
    except (OSError, UnicodeDecodeError):
        return None
    return Part(digest, text) if _DIGEST.fullmatch(digest) else None
