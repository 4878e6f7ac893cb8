"""Errors of columns and rows, and access to Ray where it is installed."""

import importlib
import sys
from typing import Any

from jaxdelegate.errors import JaxDelegateError, OptionError


class PredictionError(JaxDelegateError, ValueError):
    """The columns or rows of a batch do not fit the model, or the model failed on some of them.

    The message names the column, what was expected and what was found, and rows by their key.
    """


def import_ray(name: str = "ray") -> Any:
    """Ray, or a module of it.

    Raises:
        OptionError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f'{name} cannot be imported ({error}): pip install "jaxdelegate[ray]"'
        ) from error


def running_ray() -> Any | None:
    """Ray if this process has joined a cluster; never imports it."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None
