"""Measures the algorithms that can run an operator on the device, and chooses the fastest."""

from typing import Any

BUDGET_SECONDS = 30.0  # for all operators of one delegate, including compilation


def __getattr__(name: str) -> Any:
    """Import `tune` lazily: its module imports jax."""
    if name != "tune":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jaxdelegate.tuning.measure import tune  # noqa: PLC0415

    return tune
