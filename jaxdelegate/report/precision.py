"""The report of the errors of reduced precision by operator."""

import dataclasses

from jaxdelegate.text import plural, printable, shortened, wrapped

_LIMITS = {"float16": 65504.0}
_ROWS, _WORST = 20, 3  # operators that a report and its advice list


@dataclasses.dataclass(frozen=True)
class OperatorPrecision:
    """One operator in reduced precision compared with float32. Errors are relative to `largest`.

    Attributes:
        index: the operator's number in the subgraph.
        op: its name.
        tensor: the name of its first output.
        largest: the largest finite magnitude of its results in float32.
        error: the largest difference in the reduced model.
        own_error: the largest difference if the operator reads the float32 model's values.
        lost: the number of values that are finite in float32, and NaN or infinite in the reduced
            model.
        own_lost: the same if the operator reads the float32 model's values.
        is_reduced: whether its results are stored, or its operands multiplied, in reduced
            precision.
        leaves: whether a result is an output of the delegate.
    """

    index: int
    op: str
    tensor: str
    largest: float
    error: float
    own_error: float
    lost: int
    own_lost: int
    is_reduced: bool
    leaves: bool

    def is_wrong(self, error_bound: float) -> bool:
        """Whether the operator itself loses values, or its own error exceeds the bound."""
        return self.own_lost > 0 or not self.own_error <= error_bound


@dataclasses.dataclass(frozen=True)
class PrecisionReport:
    """A model in reduced precision compared with float32. `str()` lists the notable operators.

    Attributes:
        compute_dtype: "float16" or "bfloat16".
        error_bound: the largest allowed error relative to the largest value of each tensor.
        operators: those with float results, in execution order.
        float32_operators: the indices of the operators that exceed the bound and must stay in
            float32. `compute_dtype="auto"` does that.
        constants: for each constant that stays float32 instead of being downcast, the reason.
    """

    compute_dtype: str
    error_bound: float
    operators: tuple[OperatorPrecision, ...]
    float32_operators: tuple[int, ...] = ()
    constants: tuple[str, ...] = ()

    @property
    def first(self) -> OperatorPrecision | None:
        """The first operator with NaN or infinite values, or an error beyond the bound."""
        wrong = (o for o in self.operators if o.lost or o.is_wrong(self.error_bound))
        return next(wrong, None)

    @property
    def output_error(self) -> float:
        """The largest error of any output, relative to its largest value."""
        return max((o.error for o in self.operators if o.leaves), default=0.0)

    @property
    def is_safe(self) -> bool:
        """Whether all operators and outputs are within the error bound."""
        return self.first is None and self.output_error <= self.error_bound

    @property
    def out_of_range(self) -> tuple[OperatorPrecision, ...]:
        """Operators whose float32 results are beyond the dtype's range."""
        limit = _LIMITS.get(self.compute_dtype, float("inf"))
        return tuple(o for o in self.operators if o.largest > limit)

    @property
    def options(self) -> dict[str, str]:
        """Options of JaxDelegate with which reduced precision is safe for this model."""
        indices = ",".join(map(str, self.float32_operators))
        return {"compute_dtype": self.compute_dtype, "float32_operators": indices}

    def __str__(self) -> str:
        notable = {*self.float32_operators, *(o.index for o in self.out_of_range)}
        shown = [o for o in self.operators if o.index in notable]
        rows = [self._row(o) for o in shown[:_ROWS]]
        if len(shown) > _ROWS:
            rows.append(f"... and {len(shown) - _ROWS} more")
        step = self.next_step()
        lines = [*rows, *self.constants, self._verdict(), *([step] if step else [])]
        return wrapped("\n".join(map(printable, lines)))

    def next_step(self) -> str:
        """What to do next; empty: nothing."""
        if self.is_safe:
            return ""
        if self.float32_operators:
            indices = self.options["float32_operators"]
            return (
                f"Keep these in float32: float32_operators={indices!r} "
                f"(--jax_compute_dtype={self.compute_dtype} --jax_float32_operators={indices}), or "
                "let compute_dtype='auto' find them."
            )
        worst = sorted(self.operators, key=lambda o: -o.own_error)[:_WORST]
        names = ", ".join(f"#{o.index} {printable(o.op)} {o.own_error:.1g}" for o in worst)
        indices = ",".join(str(o.index) for o in sorted(worst, key=lambda o: o.index))
        return (
            f"The largest own errors: {names}. To keep these in float32: "
            f"--jax_float32_operators={indices}. Measure on your data (imagenet_eval, coco_eval) "
            f"whether {self.output_error:.1%} matters; --error_bound accepts it here."
        )

    def _row(self, o: OperatorPrecision) -> str:
        notes = []
        if o in self.out_of_range:
            notes.append(f"beyond {self.compute_dtype}'s {_LIMITS[self.compute_dtype]:g}")
            if not o.is_reduced:
                notes.append("stored in float32")
        if o.lost:
            notes.append(f"{plural(o.lost, 'value')} NaN or infinite")
        if o.index in self.float32_operators:
            notes.append("must stay in float32")
        return (
            f"#{o.index} {o.op} {shortened(o.tensor)!r}: up to {o.largest:.3g}, error "
            f"{o.error:.2g}, own error {o.own_error:.2g}" + "".join(f"; {note}" for note in notes)
        )

    def _verdict(self) -> str:
        off = f"outputs are off by {self.output_error:.2g} of their largest value"
        bound = f"(error bound {self.error_bound:g})"
        if self.first is not None:
            return (
                f"{self.compute_dtype}: #{self.first.index} {self.first.op} is the first operator "
                f"out of tolerance {bound}; {off}. {len(self.float32_operators)} of "
                f"{plural(len(self.operators), 'operator')} need float32."
            )
        if not self.is_safe:
            return (
                f"{self.compute_dtype}: the outputs are out of tolerance {bound}: {off}. Each "
                "operator alone is within it; small errors add up."
            )
        return f"{self.compute_dtype}: all operators within tolerance {bound}; {off}."
