"""A thinking budget: after that many tokens the channel with the model's reasoning is ended.

Source: observed in LiteRT-LM 0.18.1, whose library has a class ThinkingBudgetConstraint.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Self

import numpy as np

from jaxdelegate.lm.constraints import Constraint, words

_ALL = 0xFFFFFFFF


class ThinkingBudget:
    """Counts an answer's tokens in a channel, and says which ones come next once it is spent."""

    def __init__(
        self,
        start: Sequence[int],
        end: Sequence[int],
        budget: int,
        vocabulary: int,
        *,
        is_open: bool,
    ) -> None:
        """An empty answer.

        Args:
            start: the tokens that open the channel, at the beginning of the answer.
            end: those that end it.
            budget: the most tokens between them, at least 0.
            vocabulary: how many tokens the model has.
            is_open: the prompt has opened the channel.
        """
        self._start = () if is_open else tuple(start)  # what is left of it
        self._end, self._left, self._vocabulary = tuple(end), budget, vocabulary
        self._last: tuple[int, ...] = ()  # in the channel, as many as its end has
        self._forced: tuple[int, ...] = ()
        self._is_over = False
        self._force()

    def copy(self) -> Self:
        """One for another answer that has the same tokens so far."""
        return copy.copy(self)

    @property
    def is_over(self) -> bool:
        """Whether the channel has ended, or the answer has none."""
        return self._is_over

    @property
    def opening(self) -> int | None:
        """The next token of an answer that opens the channel; None: it is open, or over."""
        return self._start[0] if self._start and not self._is_over else None

    @property
    def room(self) -> int | None:
        """How many tokens may come before `allowed` changes, at least one; None: any number."""
        if self._is_over:
            return None
        return 1 if self._forced else max(len(self._start) + self._left, 1)

    def allowed(self) -> np.ndarray:
        """A bit for each token that may come next, uint32 [words]."""
        found = np.full(words(self._vocabulary), 0 if self._forced else _ALL, np.uint32)
        if self._forced:
            found[self._forced[0] // 32] = 1 << self._forced[0] % 32
        return found

    def add(self, token: int) -> None:
        """The answer has this token now."""
        if self._is_over:
            return
        if self._forced:
            self._forced = self._forced[1:]
            self._is_over = not self._forced
        elif self._start:
            self._is_over = token != self._start[0]  # it does not think
            self._start = self._start[1:]
            self._force()
        else:
            self._left -= 1
            self._last = (*self._last, token)[-len(self._end) :]
            self._is_over = self._last == self._end
            self._force()

    def _force(self) -> None:
        """End the channel if the budget is spent; the model may have begun to."""
        if not self._is_over and not self._start and self._left <= 0:
            sizes = range(len(self._end) - 1, -1, -1)
            begun = next(n for n in sizes if self._last[len(self._last) - n :] == self._end[:n])
            self._forced = self._end[begun:]


class AfterThought(Constraint):
    """A constraint to what follows an answer's thoughts; an answer need not have any."""

    def __init__(
        self, constraint: Constraint, thinking: ThinkingBudget, stops: Collection[int]
    ) -> None:
        """An empty answer.

        Args:
            constraint: to what follows.
            thinking: ends the thoughts.
            stops: the tokens that end an answer; thoughts cannot have them.
        """
        self._constraint, self._thinking, self._stops = constraint, thinking, tuple(stops)
        self._held: tuple[int, ...] = ()  # thoughts, or an answer, may begin so

    def copy(self) -> Self:
        other = copy.copy(self)
        other._constraint, other._thinking = self._constraint.copy(), self._thinking.copy()
        return other

    @property
    def error(self) -> str | None:
        return self._constraint.error

    @property
    def is_match(self) -> bool:
        answer = self._answer()
        return answer is not None and answer.is_match

    @property
    def is_complete(self) -> bool:
        answer = self._answer()
        return answer is not None and answer.is_complete

    def allowed(self) -> np.ndarray:
        opening, answer = self._thinking.opening, self._answer()
        found = self._thinking.allowed()
        if answer is None:
            for stop in self._stops:
                found[stop // 32] &= ~np.uint32(1 << stop % 32)
            return found
        found = answer.allowed() if answer.error is None else np.zeros_like(found)
        if opening is not None:
            found[opening // 32] |= np.uint32(1 << opening % 32)
        return found

    def add(self, token: int) -> None:
        if self._thinking.is_over:
            self._constraint.add(token)
            return
        if self._thinking.opening is not None:
            self._held = (*self._held, token)
        else:
            self._held = ()
        self._thinking.add(token)
        if self._thinking.is_over:
            self._constraint = self._after_held()

    def _answer(self) -> Constraint | None:
        """The constraint, if these tokens are its answer; None: they are thoughts."""
        if self._thinking.is_over:
            return self._constraint
        return None if self._thinking.opening is None else self._after_held()

    def _after_held(self) -> Constraint:
        answer = self._constraint.copy()
        for token in self._held:
            answer.add(token)
        return answer
