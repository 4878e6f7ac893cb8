"""What the programs of a language model do, and the arrays that they take and return.

All have sequences in slots, with a leading axis of arrays. A program takes weights, the caches in
the order of `LanguageGraph.carried`, then arrays of the host; it returns the caches first.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxdelegate.lm.choices import Choice, Variant
from jaxdelegate.lm.constraints import words
from jaxdelegate.lm.graph import LanguageGraph, Step

STEPS = 32  # the most steps of one program before the host sees their results

Array = tuple[tuple[int, ...], np.dtype]  # its shape and dtype
_INT, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class Task:
    """What one program does.

    Attributes:
        kind: "read": fill a slot's caches with a part of a prompt; "generate": continue the
            sequences; "score": the logarithms of the probabilities of given tokens.
        step: the key of the signature that it runs; of a drafter's, it generates what that proposes
            as far as it is right.
        slots: the number of sequences.
        length: of the caches.
        stops: the tokens that end an answer.
        variant: how tokens may be chosen.
        is_alone: it generates in one of the slots only, whose caches it copies and puts back.
    """

    kind: Literal["read", "generate", "score"]
    step: str
    slots: int
    length: int
    stops: tuple[int, ...] = ()
    variant: Variant = dataclasses.field(default_factory=Variant)
    is_alone: bool = False

    @property
    def rows(self) -> int:
        """How many sequences it generates or scores at once."""
        return 1 if self.is_alone else self.slots


class Sequences(NamedTuple):
    """The sequences in the slots.

    Attributes:
        token: int32 [slots]: the last token, which no cache has yet.
        position: int32 [slots]: its place.
        left: int32 [slots]: how many tokens may follow; 0: the slot rests.
        answer: int32 [slots, capacity]: the tokens that were generated; [slots, 0] where rules for
            them do not matter.
        generated: int32 [slots]: how many.
    """

    token: Any
    position: Any
    left: Any
    answer: Any
    generated: Any


class Generated(NamedTuple):
    """What a run of steps generated.

    Attributes:
        tokens: int32 [STEPS, slots, n]: up to as many as the step processes.
        scores: float32 [STEPS, slots, n]: the logarithms of their probabilities, if the variant has
            them.
        counts: int32 [STEPS, slots]: how many tokens there are; 0: the slot rested.
        steps: int32: how many were run.
        hidden_state: float32 [slots, n]: before the last token, if the variant has it; [slots, 0].
    """

    tokens: Any
    scores: Any
    counts: Any
    steps: Any
    hidden_state: Any


def caches(graph: LanguageGraph, slots: int, length: int) -> list[Array]:
    """Those of all slots; of one slot without the axis, which would make XLA copy them."""
    ahead = (slots,) if slots > 1 else ()
    return [((*ahead, *graph.shape(name, length)), s.dtype) for name, s in graph.carried.items()]


def arguments(graph: LanguageGraph, task: Task, step: Step) -> list[Array]:
    """The arrays of the host that a program takes, in order."""
    n, scalar = task.rows, ((), _INT)
    if task.kind == "read":  # slot, tokens, start, count
        return [scalar, ((step.length,), _INT), scalar, scalar]
    if task.kind == "score":  # token, position, targets, lengths
        return [((n,), _INT), ((n,), _INT), ((n, STEPS), _INT), ((n,), _INT)]
    capacity = graph.capacity if task.variant.has_rules else 0
    suppressed = graph.vocabulary if task.variant.has_rules else 0
    allowed = words(graph.vocabulary) if task.variant.is_masked else 0
    each = (n,), _INT
    sequences = Sequences(each, each, each, ((n, capacity), _INT), each)
    choice = Choice(
        k=((n,), _INT),
        p=((n,), _FLOAT),
        temperature=((n,), _FLOAT),
        seed=((n,), np.dtype(np.uint32)),
        suppressed=((n, suppressed), _FLOAT),
        penalties=((n, 3), _FLOAT),
        window=((n,), _INT),
        ngram_window=((n,), _INT),
        allowed=((n, allowed), np.dtype(np.uint32)),
    )
    # The scalars limit the steps, and name the slot.
    return [*sequences, *choice, scalar, *([scalar] * task.is_alone)]


def results(graph: LanguageGraph, task: Task) -> list[Array]:
    """The arrays that a program returns, in order."""
    n = task.rows
    own: list[Array] = []
    if task.kind == "generate":
        most = (STEPS, n, graph.step(task.step).length)
        size = graph.hidden_size if task.variant.has_hidden_state else 0
        state = ((n, size), _FLOAT)
        own = [*Generated((most, _INT), (most, _FLOAT), (most[:2], _INT), ((), _INT), state)]
    if task.kind == "score":
        own = [((n, STEPS), _FLOAT)]
    return [*caches(graph, task.slots, task.length), *own]
