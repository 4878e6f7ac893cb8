"""Errors of columns and rows, and Ray if it runs."""

import sys
from typing import Any

from jaxdelegate.errors import JaxDelegateError


class PredictionError(JaxDelegateError, ValueError):
    """The columns or rows of a batch do not fit the model, or the model failed on some of them.

    The message names the column, what was expected and what was found, and rows by their key.
    """


def running_ray() -> Any | None:
    """Ray if this process has joined a cluster; never imports it."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None
