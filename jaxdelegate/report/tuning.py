"""What was measured of operators that have several algorithms, and which one was chosen."""

import dataclasses
from collections.abc import Mapping

from jaxdelegate.report.tables import table


@dataclasses.dataclass(frozen=True)
class Choice:
    """One operator, as many as there are like it.

    Attributes:
        algorithm: which one runs.
        default: which one would run without measuring.
        seconds: of one run, by algorithm: medians.
        refused: why the other algorithms took no part.
    """

    algorithm: str
    default: str
    seconds: Mapping[str, float]
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def gain(self) -> float:
        """How many times as fast as the default it is."""
        return self.seconds[self.default] / self.seconds[self.algorithm]


@dataclasses.dataclass(frozen=True)
class TuningReport:
    """All choices by operator; the key says its shapes, dtypes and options. `str()` is a table."""

    device: str
    choices: Mapping[str, Choice]

    def __str__(self) -> str:
        """A line for each operator, the slowest by default first, then a summary."""
        rows = [("default ms", "chosen ms", "algorithm", "default", "operator")]
        by_time = sorted(self.choices.items(), key=lambda kv: -kv[1].seconds[kv[1].default])
        rows += [_row(key, choice) for key, choice in by_time]
        return "\n".join([*table(rows, right={0, 1}), self.summary()])

    def summary(self) -> str:
        """How many operators take another algorithm than their default."""
        changed = sum(choice.algorithm != choice.default for choice in self.choices.values())
        return (
            f"{changed} of {len(self.choices)} measured kinds of operators run by another "
            f"algorithm than the default on {self.device}."
        )


def _row(key: str, choice: Choice) -> tuple[str, str, str, str, str]:
    return (
        f"{1e3 * choice.seconds[choice.default]:.3f}",
        f"{1e3 * choice.seconds[choice.algorithm]:.3f}",
        choice.algorithm,
        choice.default,
        key.partition(";")[0],
    )
