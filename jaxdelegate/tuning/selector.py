"""Chooses the algorithms of operators: by measuring, or from choices stored in a directory.

`measure.py` is imported only to measure.
"""

import dataclasses
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


@dataclasses.dataclass(eq=False)
class Tuner:
    """The choices of one delegate: measured, read from a directory, or none.

    With "sustained_speed", operators without a stored choice are measured; "balanced" uses stored
    choices; "fast_single_answer" does neither.
    """

    preference: Preference
    device: Any
    store: ChoiceStore | None
    measure: Callable[..., dict[str, Choice]] | None = None  # None: `measure.tune`
    budget: float = BUDGET_SECONDS  # for all partitions
    clock: Callable[[], float] = time.perf_counter
    choices: dict[str, Choice] | None = dataclasses.field(default=None, init=False)

    def algorithms(self, partition: "LoweredPartition", context: LoweringContext) -> dict[str, str]:
        """The algorithms of operators that do not use their defaults, by operator key."""
        if self.preference == "fast_single_answer":
            return {}
        choices = self._known()
        if self.preference == "sustained_speed":
            choices.update(self._measured(partition, context, choices))
        return {key: c.algorithm for key, c in choices.items() if c.algorithm != c.default}

    def _measured(
        self, partition: "LoweredPartition", context: LoweringContext, known: Mapping[str, Choice]
    ) -> dict[str, Choice]:
        start = self.clock()
        measure = self.measure or _tune()
        new = measure(partition, context, self.device, known, budget=self.budget)
        self.budget -= self.clock() - start
        if new:
            _LOGGER.info("tuning: %s", TuningReport(str(self.device), new).summary())
            if self.store is not None:
                self.store.add(new)
        return new

    def digest(self) -> str | None:
        """A digest of the stored choices; None: programs do not depend on them."""
        if self.preference != "balanced" or self.store is None:
            return None
        return self.store.digest()

    def report(self) -> TuningReport:
        return TuningReport(str(self.device), dict(self._known()))

    def _known(self) -> dict[str, Choice]:
        # With "balanced", the key of a program includes these choices, so both must be equally new.
        if self.choices is None or self.preference == "balanced":
            self.choices = {} if self.store is None else self.store.read()
        return self.choices


def _tune() -> Callable[..., dict[str, Choice]]:
    from jaxdelegate.tuning.measure import tune  # noqa: PLC0415 (imports jax)

    return tune
