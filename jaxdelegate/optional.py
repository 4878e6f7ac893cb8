"""Optional dependencies, which the extras of the package install."""

import importlib
from typing import Any

from jaxdelegate.errors import OptionError


def optional_module(name: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Args:
        name: of the module.
        extra: of jaxdelegate that installs it.

    Raises:
        OptionError: it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"{name.partition('.')[0]} is not installed ({error}): pip install "
            f"'jaxdelegate[{extra}]'"
        ) from error
