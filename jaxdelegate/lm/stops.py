"""The sequences of tokens that end an answer."""

from collections.abc import Sequence


class StopSequences:
    """Where answers end.

    Attributes:
        sequences: of tokens; one after which an answer ends does not belong to it.
        tokens: those that are a sequence alone: programs stop at them.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.sequences = [list(ids) for ids in dict.fromkeys(map(tuple, sequences)) if ids]
        self.tokens = frozenset(ids[0] for ids in self.sequences if len(ids) == 1)

    def find(self, tokens: Sequence[int], first: int) -> range | None:
        """The place of the first stop sequence that ends after the first tokens."""
        for end in range(first + 1, len(tokens) + 1):
            for stop in self.sequences:
                if list(tokens[max(end - len(stop), 0) : end]) == stop:
                    return range(end - len(stop), end)
        return None

    def overlap(self, tokens: Sequence[int]) -> int:
        """How many tokens at the end may begin a stop sequence."""
        sizes = (
            n for stop in self.sequences for n in range(1, len(stop)) if [*tokens[-n:]] == stop[:n]
        )
        return max(sizes, default=0)
