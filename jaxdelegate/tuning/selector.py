"""Chooses the algorithms of operators: by measuring, or from choices stored in a directory.

`measure.py` is imported only to measure.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jaxdelegate.cache.choices import ChoiceStore
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.options import Preference
from jaxdelegate.report.tuning import Choice, TuningReport

if TYPE_CHECKING:
    from jaxdelegate.lowering.computation import LoweredPartition

_LOGGER = logging.getLogger("jaxdelegate")
BUDGET_SECONDS = 30.0  # for all operators of one delegate, including compilation


class Tuner:
    """The choices of one delegate: measured, read from a directory, or none."""

    def __init__(
        self,
        preference: Preference,
        device: Any,
        store: ChoiceStore | None,
        measure: Callable[..., dict[str, Choice]] | None = None,
        budget: float = BUDGET_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start without choices; `budget` is in seconds, for all partitions.

        With "sustained_speed", operators without a stored choice are measured; "balanced" uses
        stored choices; "fast_single_answer" does neither. By default `measure` is `measure.tune`.
        """
        self._preference = preference
        self._device = device
        self._store = store
        self._measure = measure
        self._budget = budget
        self._clock = clock
        self._choices: dict[str, Choice] | None = None

    def algorithms(self, partition: "LoweredPartition", context: LoweringContext) -> dict[str, str]:
        """The algorithms of operators that do not use their defaults, by operator key."""
        if self._preference == "fast_single_answer":
            return {}
        choices = self._known()
        if self._preference == "sustained_speed":
            choices.update(self._measured(partition, context, choices))
        return {key: c.algorithm for key, c in choices.items() if c.algorithm != c.default}

    def _measured(
        self, partition: "LoweredPartition", context: LoweringContext, known: Mapping[str, Choice]
    ) -> dict[str, Choice]:
        start = self._clock()
        measure = self._measure or _tune()
        new = measure(partition, context, self._device, known, budget=self._budget)
        self._budget -= self._clock() - start
        if new:
            _LOGGER.info("tuning: %s", TuningReport(str(self._device), new).summary())
            if self._store is not None:
                self._store.add(new)
        return new

    def digest(self) -> str | None:
        """A digest of the stored choices; None: programs do not depend on them."""
        if self._preference != "balanced" or self._store is None:
            return None
        return self._store.digest()

    def report(self) -> TuningReport:
        return TuningReport(str(self._device), dict(self._known()))

    def _known(self) -> dict[str, Choice]:
        # With "balanced", the key of a program includes these choices, so both must be equally new.
        if self._choices is None or self._preference == "balanced":
            self._choices = {} if self._store is None else self._store.read()
        return self._choices


def _tune() -> Callable[..., dict[str, Choice]]:
    from jaxdelegate.tuning.measure import tune  # noqa: PLC0415 (imports jax)

    return tune
