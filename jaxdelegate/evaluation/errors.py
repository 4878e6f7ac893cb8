"""What can be wrong with images, labels, annotations and stored results; and missing extras."""

import importlib
from typing import Any

from jaxdelegate.errors import JaxDelegateError, OptionError


class DataError(JaxDelegateError, ValueError):
    """Images, labels, annotations or the model do not fit the evaluation.

    The message names the file and the line or field, what was expected and what stood there.
    """


def optional_module(name: str) -> Any:
    """An optional dependency, imported at its first use.

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
