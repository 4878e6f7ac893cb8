"""Times the algorithms that an operator could use on the device, and keeps the fastest."""

from typing import Any

BUDGET_SECONDS = 30.0  # for all operators that one delegate measures, compilations included


def __getattr__(name: str) -> Any:
    """`tune`, whose module imports jax."""
    if name != "tune":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jaxdelegate.tuning.measure import tune  # noqa: PLC0415

    return tune
