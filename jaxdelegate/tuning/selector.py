"""Which algorithms a delegate runs operators by: measured, or read from a directory.

`measure.py`, which measures, is imported when there is something to measure.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jaxdelegate.cache.choices import ChoiceStore
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.options import Preference
from jaxdelegate.report.tuning import Choice, TuningReport
from jaxdelegate.tuning import BUDGET_SECONDS

if TYPE_CHECKING:
    from jaxdelegate.lowering.computation import LoweredPartition

_LOGGER = logging.getLogger("jaxdelegate")

Clock = Callable[[], float]


def measured(
    partition: "LoweredPartition",
    context: LoweringContext,
    device: Any,
    known: Mapping[str, Choice],
    *,
    budget: float,
) -> dict[str, Choice]:
    """As `tuning.tune`."""
    from jaxdelegate.tuning import measure as tuning  # noqa: PLC0415 (what few programs need)

    return tuning.tune(partition, context, device, known, budget=budget)


class Tuner:
    """The choices of one delegate: measured, taken over from the directory, or none at all."""

    def __init__(
        self,
        preference: Preference,
        device: Any,
        store: ChoiceStore | None,
        measure: Callable[..., dict[str, Choice]] = measured,
        budget: float = BUDGET_SECONDS,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Begin without choices.

        Args:
            preference: "sustained_speed" measures what is not known; "balanced" takes over what is
                stored; "fast_single_answer" does neither.
            device: where programs run.
            store: where choices are kept; None: nowhere.
            measure: `tuning.tune`, or that with another clock or timer.
            budget: seconds for all partitions.
            clock: what the budget is read from.
        """
        self._preference = preference
        self._device = device
        self._store = store
        self.measure = measure
        self._budget = budget
        self._clock = clock
        self._choices: dict[str, Choice] | None = None

    def algorithms(self, partition: "LoweredPartition", context: LoweringContext) -> dict[str, str]:
        """The algorithms other than defaults that operators are to run by, by operator key.

        Args:
            partition: as it is lowered by default.
            context: with which it was.
        """
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
        new = self.measure(partition, context, self._device, known, budget=self._budget)
        self._budget -= self._clock() - start
        if new:
            _LOGGER.info("tuning: %s", TuningReport(str(self._device), new).summary())
            if self._store is not None:
                self._store.add(new)
        return new

    def digest(self) -> str | None:
        """Of the stored choices, where programs depend on what was stored before them."""
        if self._preference != "balanced" or self._store is None:
            return None
        return self._store.digest()

    def report(self) -> TuningReport:
        """All choices that are known for the device, those of the directory included."""
        return TuningReport(str(self._device), dict(self._known()))

    def _known(self) -> dict[str, Choice]:
        # What "balanced" reads belongs to the key of its programs: it must be as new as that.
        if self._choices is None or self._preference == "balanced":
            self._choices = {} if self._store is None else self._store.read()
        return self._choices
