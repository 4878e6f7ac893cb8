"""Measured choices of algorithms, stored next to programs: a JSON file for each kind of device.

They are measured once: other shapes, models and processes reuse them. Like those of programs, their
key covers sources, versions, the kind of device, flags and the host. It does not cover the model.
"""

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.environment import device_identity, environment_parts
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.cache.sources import SourceError, confirm, source_parts
from jaxdelegate.errors import CacheWarning
from jaxdelegate.pjrt import jax_settings
from jaxdelegate.report.tuning import Choice

SUFFIX = ".choices"
_FORMAT = 2


class ChoiceStore:
    """A faulty file costs time only."""

    def __init__(self, directory: PrivateDirectory, device: Any) -> None:
        self._directory = directory
        self._device = device

    def read(self) -> dict[str, Choice]:
        """The stored choices by operator key; empty if none are stored or usable."""
        try:
            return _unpacked(self._content())
        except (SourceError, FileNotFoundError):
            return {}
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            _warn(f"stored autotuning results are not used: {error}")
            return {}

    def add(self, choices: Mapping[str, Choice]) -> None:
        """Concurrent writers may overwrite each other."""
        try:
            key = self._key()
            confirm(of_subgraphs=False)
            rows = sorted({**self.read(), **choices}.items())
            content = {
                "format": _FORMAT,
                "key": key.as_json(),
                "choices": {name: dataclasses.asdict(choice) for name, choice in rows},
            }
            self._directory.write(_file(key), [json.dumps(content, indent=1).encode()])
        except (SourceError, OSError) as error:
            _warn(f"autotuning results are not stored: {error}")

    def digest(self) -> str | None:
        """The digest of the stored choices; None: none are stored."""
        try:
            return hashlib.sha256(self._content()).hexdigest()
        except (SourceError, OSError):
            return None

    def _content(self) -> bytes:
        return self._directory.read(_file(self._key()))

    def _key(self) -> Key:
        device = device_identity(self._device)
        # Equal devices share choices: neither the ordinal nor the process index matters.
        kind = [part for i, part in enumerate(device) if i not in (2, 3)]
        environment = environment_parts(self._device) | source_parts(of_subgraphs=False)
        settings = Part.of(jax_settings.current())
        return Key({**environment, "device": Part.of(kind), "jax_config": settings})


def _file(key: Key) -> str:
    return f"{key.digest}{SUFFIX}"


def _unpacked(content: bytes) -> dict[str, Choice]:
    stored: Any = json.loads(content)
    if stored["format"] != _FORMAT:
        raise ValueError(f"the format is {stored['format']}, expected {_FORMAT}")
    return {str(name): _choice(row) for name, row in stored["choices"].items()}


def _choice(row: Any) -> Choice:
    seconds = {str(name): float(value) for name, value in row["seconds"].items()}
    algorithm, default = str(row["algorithm"]), str(row["default"])
    if algorithm not in seconds or default not in seconds:
        raise ValueError(f"{algorithm!r} or {default!r} was not measured")
    refused = {str(name): str(reason) for name, reason in row["refused"].items()}
    return Choice(algorithm, default, seconds, refused)


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=2)
