"""Errors of images, labels, annotations and stored results, and optional dependencies."""

import importlib
from typing import Any

from jaxdelegate.errors import JaxDelegateError, OptionError


class DataError(JaxDelegateError, ValueError):
    """Images, labels, annotations or the model do not fit the evaluation.

    The message names the file and the line or field, what was expected and what was found.
    """


def optional_module(name: str) -> Any:
    """Import an optional dependency.

    Raises:
        OptionError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"{name.split('.', maxsplit=1)[0]} is not installed; evaluation needs "
            "pip install 'jaxdelegate[eval]'"
        ) from error
