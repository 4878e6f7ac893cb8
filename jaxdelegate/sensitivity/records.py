"""The results of `quantization_sensitivity`, which print as tables."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.tables import table
from jaxdelegate.sensitivity.schemes import SCHEMES, recipe
from jaxdelegate.text import printable, shortened, wrapped

_ROWS = 30


@dataclasses.dataclass(frozen=True)
class OutputError:
    """The change of the outputs by quantization.

    Attributes:
        error: RMS of the change relative to the RMS of the output; the largest of several outputs.
        top1_changes: the number of rows of [N, classes] with another class; None: no such output.
    """

    error: float
    top1_changes: int | None = None

    @property
    def sqnr(self) -> float:
        """The signal to quantization noise ratio in dB."""
        return -20 * math.log10(self.error) if self.error > 0 else math.inf

    def __str__(self) -> str:
        """The error, also in dB, and the number of changed classes."""
        if self.error == 0:
            return "0"
        moved = f" top-1: {self.top1_changes}" if self.top1_changes else ""
        return f"{self.error:.2g} ({self.sqnr:.0f} dB){moved}"


@dataclasses.dataclass(frozen=True)
class OperatorSensitivity:
    """The sensitivity of one operator.

    Attributes:
        index: its index in the main subgraph.
        op: its name.
        tensor: the name of its first output.
        tensors: the names of all outputs.
        bytes_saved: by scheme, of its weights in the file.
        errors: of the outputs if only this operator is quantized, by scheme; without schemes in
            which litert-quantizer leaves it in float.
        reads_input: whether it reads an input of the model.
        writes_output: whether it writes an output of the model.
    """

    index: int
    op: str
    tensor: str
    tensors: tuple[str, ...]
    bytes_saved: Mapping[str, int]
    errors: Mapping[str, OutputError]
    reads_input: bool
    writes_output: bool


@dataclasses.dataclass(frozen=True)
class LeftOperator:
    """An operator that no scheme quantizes: its index, name and outputs, and the reason."""

    index: int
    op: str
    tensors: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class SensitivityReport:
    """Operators by sensitivity. `str()` is a table, the most sensitive operator first.

    Attributes:
        source: the name of the model's file.
        schemes: their names; the first one ranks.
        samples: the number of sets of inputs.
        is_random: whether the samples are random.
        rows: the number of rows of [N, classes] in all samples; None: no such output.
        operators: ranked.
        left: operators that cannot be quantized, with the reason.
        whole: by scheme, the error if all operators are quantized.
        inputs: the names of the model's inputs.
        outputs: the names of its outputs.
    """

    source: str
    schemes: tuple[str, ...]
    samples: int
    is_random: bool
    rows: int | None
    operators: tuple[OperatorSensitivity, ...]
    left: tuple[LeftOperator, ...]
    whole: Mapping[str, OutputError]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def ranked(self, scheme: str) -> list[OperatorSensitivity]:
        """The operators of a scheme by the error of quantizing each alone, the largest first.

        Raises:
            OptionError: the report has no such scheme.
        """
        if scheme not in self.schemes:
            raise OptionError(f"scheme: expected one of {', '.join(self.schemes)}, got {scheme!r}")
        return sorted(
            (o for o in self.operators if scheme in o.errors), key=lambda o: -o.errors[scheme].error
        )

    def float_operators(
        self, scheme: str, *, max_error: float | None = None, max_total: float | None = None
    ) -> tuple[int, ...]:
        """The operators to keep in float, the most sensitive first.

        Args:
            scheme: its name.
            max_error: the largest allowed output error of one operator.
            max_total: the largest allowed `total` of the quantized operators.

        Raises:
            OptionError: an unknown scheme, or no bound.
        """
        if max_error is None and max_total is None:
            raise OptionError("float_operators: expected max_error, max_total or both, got neither")
        ranked = self.ranked(scheme)
        rest = [o.errors[scheme].error for o in ranked]
        count = 0
        while count < len(rest) and (
            (max_error is not None and rest[count] > max_error)
            or (max_total is not None and math.hypot(*rest[count:]) > max_total)
        ):
            count += 1
        return tuple(o.index for o in ranked[:count])

    def total(self, scheme: str, kept: Collection[int] = ()) -> float:
        """The error of all quantized operators: the root of the sum of squares (independent noise).

        Args:
            scheme: its name.
            kept: indices of operators that stay float.
        """
        rest = (o.errors[scheme].error for o in self.ranked(scheme) if o.index not in kept)
        return math.hypot(*rest)

    def recipe(self, scheme: str, kept: Sequence[int]) -> list[dict[str, Any]]:
        """A recipe for litert-quantizer that quantizes everything except some operators.

        Args:
            scheme: its name.
            kept: indices of operators that stay float.

        Raises:
            OptionError: an unknown scheme, or an operator that it does not quantize.
        """
        by_index = {o.index: o for o in self.ranked(scheme)}
        unknown = [i for i in kept if i not in by_index]
        if unknown:
            raise OptionError(f"recipe: {scheme} quantizes no operator #{unknown[0]} of this model")
        chosen = [by_index[i] for i in kept]
        named = SCHEMES[scheme]
        others: list[OperatorSensitivity | LeftOperator] = [*self.operators, *self.left]
        unsupported = [o for o in others if o.op in named.operators and o.index not in by_index]
        return recipe(
            named,
            [(o.op, o.tensors) for o in (*chosen, *unsupported)],
            self.inputs if any(o.reads_input for o in chosen) else (),
            self.outputs if any(o.writes_output for o in chosen) else (),
        )

    def __str__(self) -> str:
        """The table of the most sensitive operators."""
        return self.table(_ROWS)

    def table(self, rows: int = 0) -> str:
        """Operators with their errors by scheme, then operators that cannot be quantized.

        Args:
            rows: the number of operators to show; 0: all.
        """
        shown = self.operators[: rows or None]
        saving = self._saving()
        head = ["#", "operator", "output", *(f"{name} saves" for name in saving)]
        lines = [[*head, *self.schemes]]
        lines += [self._cells(o, saving) for o in shown]
        total = ["", "all of them", "", *("" for _ in saving)]
        lines.append([*total, *(str(self.whole.get(name, "-")) for name in self.schemes)])
        more = len(self.operators) - len(shown)
        return "\n".join(
            [
                *map(wrapped, self._heading()),
                *table(lines),
                *([f"... and {more} less sensitive operators"] if more else []),
                *map(wrapped, self._left()),
            ]
        )

    def _saving(self) -> list[str]:
        by_bits: dict[int, str] = {}
        for name in self.schemes:
            by_bits.setdefault(SCHEMES[name].weight_bits, name)
        return list(by_bits.values())

    def _cells(self, o: OperatorSensitivity, saving: Sequence[str]) -> list[str]:
        saved = [f"{o.bytes_saved.get(s, 0) / 1000:.1f} kB" for s in saving]
        return [
            f"{o.index}",
            printable(o.op),
            shortened(printable(o.tensor)),
            *saved,
            *(str(o.errors.get(s, "-")) for s in self.schemes),
        ]

    def _heading(self) -> list[str]:
        kind = "random inputs" if self.is_random else "samples"
        lines = [
            f"{printable(self.source)}: each operator quantized alone, ranked by "
            f"{self.schemes[0]}; {self.samples} {kind}",
            "RMS of the change of the output / RMS of the output (signal to noise)",
        ]
        if self.rows is not None:
            lines[1] += f"; top-1: how many of {self.rows} changed their class"
        if self.is_random:
            lines.append(
                "note: random inputs have neither the ranges nor the classes of real inputs; set "
                "--inputs"
            )
        return lines

    def _left(self) -> list[str]:
        reasons: dict[str, dict[str, int]] = {}
        for o in self.left:
            counts = reasons.setdefault(o.reason, {})
            counts[o.op] = counts.get(o.op, 0) + 1
        return [
            printable(
                f"no row: {', '.join(f'{n} {op}' for op, n in sorted(counts.items()))}: {reason}"
            )
            for reason, counts in reasons.items()
        ]
