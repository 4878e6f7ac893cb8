"""The report of measured algorithms of operators, and which were chosen."""

import dataclasses
from collections.abc import Mapping

from jaxdelegate.report.tables import table
from jaxdelegate.text import plural, wrapped


@dataclasses.dataclass(frozen=True)
class Choice:
    algorithm: str
    default: str  # the algorithm without measurements
    seconds: Mapping[str, float]  # median time of one run by algorithm
    # Why algorithms were not measured, by algorithm.
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def gain(self) -> float:
        """Speedup over the default."""
        return self.seconds[self.default] / self.seconds[self.algorithm]


@dataclasses.dataclass(frozen=True)
class TuningReport:
    """Choices by operator, with shapes, dtypes and options in the key. `str()` is a table."""

    device: str
    choices: Mapping[str, Choice]

    def __str__(self) -> str:
        rows = [("default ms", "chosen ms", "algorithm", "default", "operator")]
        by_time = sorted(self.choices.items(), key=lambda kv: -kv[1].seconds[kv[1].default])
        rows += [_row(key, choice) for key, choice in by_time]
        return "\n".join([*table(rows, right={0, 1}), wrapped(self.summary())])

    def summary(self) -> str:
        """How many operators run another algorithm than their default."""
        changed = sum(choice.algorithm != choice.default for choice in self.choices.values())
        return (
            f"{changed} of {plural(len(self.choices), 'measured kind')} of operators run another "
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
