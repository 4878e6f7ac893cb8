"""The programs of a language model: they read prompts, generate tokens and score them.

All have sequences in slots, with a leading axis of arrays. Caches are donated, so that programs
change them in place; weights are those that a delegate would use, one copy for all programs.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.function.model import CallableModel
from jaxdelegate.lm.graph import LanguageGraph, Step
from jaxdelegate.lm.sampling import Choice, Variant, next_token

Caches = dict[str, jax.Array]
# LiteRT-LM's negative number of a mask (litert_compiled_model_executor_utils.cc): sums with logits
# stay finite.
_MASKED = {
    np.dtype(np.float32): -0.7 * float(np.finfo(np.float32).max),
    np.dtype(np.float16): -45824.0,
}
STEPS = 32  # the most that one program generates before the host sees them


class Slots(NamedTuple):
    """The sequences of a program, each in a slot.

    Attributes:
        caches: of each slot; of one slot without the axis, which would make XLA copy them.
        token: int32 [slots]: the last token, which no cache has yet.
        position: int32 [slots]: its place.
        left: int32 [slots]: how many tokens may follow; 0: the slot rests.
        answer: int32 [slots, capacity]: the tokens that were generated.
        generated: int32 [slots]: how many.
    """

    caches: Caches
    token: jax.Array
    position: jax.Array
    left: jax.Array
    answer: jax.Array
    generated: jax.Array


class Generated(NamedTuple):
    """What a run of steps generated.

    Attributes:
        tokens: int32 [STEPS, slots]; those of resting slots mean nothing.
        scores: float32 [STEPS, slots].
        steps: int32: how many were run.
    """

    tokens: jax.Array
    scores: jax.Array
    steps: jax.Array


class Programs:
    """The compiled programs of a model, for a number of slots."""

    def __init__(
        self, model: CallableModel, graph: LanguageGraph, slots: int, stops: tuple[int, ...]
    ) -> None:
        """`stops` are the tokens that end an answer."""
        self.graph, self.slots = graph, slots
        self._device = jax.devices(model.options.platform)[model.options.device_index or 0]
        steps = (*graph.prefill, graph.decode)
        functions = {step.key: model.function(step.key, weights="prepared") for step in steps}
        self._apply = {key: apply for key, (apply, _) in functions.items()}
        self.params = {key: params for key, (_, params) in functions.items()}
        self._stops = np.asarray(stops, np.int32)
        # A decode step reads a token, too: its logits are not computed then.
        self._prefill = {
            step.length: (step, jax.jit(functools.partial(self._read, step), donate_argnums=1))
            for step in (graph.decode, *graph.prefill)
        }
        self._begin = jax.jit(_begun, donate_argnums=0)
        self._generate: dict[Variant, Any] = {}
        self._score = jax.jit(self._scored, donate_argnums=1)

    @property
    def _of_decode(self) -> Any:
        return self.params[self.graph.decode.key]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device; what several steps share counts once."""
        leaves = {id(leaf): leaf for own in self.params.values() for leaf in own.values()}
        return sum(leaf.nbytes for leaf in leaves.values())

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of one slot."""
        return sum(
            int(np.prod(info.shape)) * info.dtype.itemsize for info in self.graph.states.values()
        )

    def new_slots(self) -> Slots:
        """Empty sequences, which rest."""
        n, states = self.slots, self.graph.states
        ahead = (n,) if n > 1 else ()
        caches = {name: jnp.zeros((*ahead, *s.shape), s.dtype) for name, s in states.items()}
        answer = jnp.zeros((n, self.graph.capacity), np.int32)
        token, position, left, generated = (jnp.zeros(n, np.int32) for _ in range(4))
        slots = Slots(caches, token, position, left, answer, generated)
        # On the weights' device for good, as results are: otherwise jax would compile twice.
        placed: Slots = jax.device_put(slots, self._device)
        return placed

    def read(self, slots: Slots, slot: int, tokens: np.ndarray, start: int) -> Slots:
        """Fill a slot's caches with as many tokens as a prefill step processes, from `start` on."""
        step, run = self._prefill[len(tokens)]
        numbers = np.int32(slot), tokens.astype(np.int32), np.int32(start)
        result: Slots = run(self.params[step.key], slots, *numbers)
        return result

    def begin(self, slots: Slots, slot: int, token: int, position: int, left: int) -> Slots:
        """Let a slot generate up to `left` tokens after a token that no cache has yet."""
        numbers = [np.int32(n) for n in (slot, token, position, left)]
        result: Slots = self._begin(slots, *numbers)
        return result

    def generate(
        self, variant: Variant, slots: Slots, choice: Choice, limit: int
    ) -> tuple[Slots, Generated]:
        """Generate up to `limit` tokens in each slot that does not rest; ends when all rest."""
        run = self._generator(variant)
        result: tuple[Slots, Generated] = run(
            self._of_decode, slots, choice, np.int32(min(limit, STEPS))
        )
        return result

    def compiled(self, variant: Variant, slots: Slots, choice: Choice) -> jax.stages.Compiled:
        """The program that generates, for tools that inspect it."""
        lowered = self._generator(variant).lower(self._of_decode, slots, choice, np.int32(1))
        compiled: jax.stages.Compiled = lowered.compile()
        return compiled

    def _generator(self, variant: Variant) -> Any:
        if variant not in self._generate:
            run = functools.partial(self._generated, variant)
            self._generate[variant] = jax.jit(run, donate_argnums=1)
        return self._generate[variant]

    def score(
        self, slots: Slots, targets: np.ndarray, lengths: np.ndarray
    ) -> tuple[Slots, jax.Array]:
        """float32 [slots, STEPS]: the logarithms of the probabilities of the next tokens.

        Args:
            slots: their last tokens come before the targets.
            targets: int32 [slots, STEPS].
            lengths: int32 [slots]: how many of them each slot has.
        """
        result: tuple[Slots, jax.Array] = self._score(self._of_decode, slots, targets, lengths)
        return result

    # ---- of one sequence

    def _run(
        self, params: Any, step: Step, caches: Mapping[str, Any], tokens: Any, start: Any
    ) -> tuple[Caches, jax.Array | None]:
        """Caches and the logits of the last token, after `step.length` tokens from `start` on."""
        graph = self.graph
        positions = start + lax.iota(np.int32, step.length)
        inputs: dict[str, Any] = dict(caches)
        inputs["tokens"] = tokens.astype(graph.tokens).reshape(1, step.length)
        inputs["input_pos"] = positions.astype(graph.positions)
        if step.mask is not None:
            inputs[step.mask] = self._mask(positions)
        outputs = self._apply[step.key](params, inputs)
        new = {name: outputs[name] for name in step.states}
        logits = outputs["logits"].reshape(-1, graph.vocabulary)[-1] if step.has_logits else None
        return new, logits

    def _mask(self, positions: jax.Array) -> jax.Array:
        """[1, 1, tokens, capacity]: each token sees itself and those before it."""
        graph = self.graph
        sees = lax.iota(np.int32, graph.capacity)[None] <= positions[:, None]
        if graph.masks != np.bool_:
            masked = np.asarray(_MASKED[graph.masks], graph.masks)
            sees = jnp.where(sees, np.zeros((), graph.masks), masked)
        return sees[None, None]

    # ---- of all slots

    def _read(
        self, step: Step, params: Any, slots: Slots, slot: jax.Array, tokens: Any, start: Any
    ) -> Slots:
        if self.slots == 1:
            new, _ = self._run(params, step, slots.caches, tokens, start)
            return slots._replace(caches={**slots.caches, **new})
        caches = slots.caches
        own = {name: lax.dynamic_index_in_dim(c, slot, 0, False) for name, c in caches.items()}
        new, _ = self._run(params, step, own, tokens, start)
        changed = {
            name: lax.dynamic_update_index_in_dim(caches[name], value, slot, 0)
            for name, value in new.items()
        }
        return slots._replace(caches={**caches, **changed})

    def _step(self, params: Any, slots: Slots) -> tuple[Caches, jax.Array]:
        """Caches and logits [slots, vocabulary] after the slots' last tokens."""

        def one(caches: Any, token: Any, position: Any) -> Any:
            return self._run(params, self.graph.decode, caches, token[None], position)

        if self.slots == 1:
            caches, logits = one(slots.caches, slots.token[0], slots.position[0])
            return caches, logits[None]
        both: tuple[Caches, jax.Array] = jax.vmap(one)(slots.caches, slots.token, slots.position)
        return both

    def _generated(
        self, variant: Variant, params: Any, slots: Slots, choice: Choice, limit: jax.Array
    ) -> tuple[Slots, Generated]:
        choose = jax.vmap(functools.partial(next_token, variant))
        found = Generated(
            jnp.zeros((STEPS, self.slots), np.int32),
            jnp.zeros((STEPS, self.slots), np.float32),
            jnp.zeros((), np.int32),
        )

        def goes_on(both: tuple[Slots, Generated]) -> jax.Array:
            slots, found = both
            return (found.steps < limit) & jnp.any(slots.left > 0)

        def step(both: tuple[Slots, Generated]) -> tuple[Slots, Generated]:
            slots, found = both
            caches, logits = self._step(params, slots)
            tokens, scores = choose(
                choice, logits.astype(np.float32), slots.answer, slots.generated
            )
            return self._advanced(slots, caches, tokens), Generated(
                found.tokens.at[found.steps].set(tokens),
                found.scores.at[found.steps].set(scores),
                found.steps + 1,
            )

        return lax.while_loop(goes_on, step, (slots, found))

    def _advanced(self, slots: Slots, caches: Caches, tokens: jax.Array) -> Slots:
        """The slots after these tokens; resting ones keep everything but their caches."""
        is_active = slots.left > 0
        ends = jnp.isin(tokens, self._stops) if len(self._stops) else jnp.zeros_like(is_active)
        moved = is_active.astype(np.int32)
        place = jnp.where(is_active, slots.generated, self.graph.capacity)  # beyond: dropped
        rows = lax.iota(np.int32, self.slots)
        return Slots(
            caches,
            jnp.where(is_active, tokens, slots.token),
            slots.position + moved,
            jnp.where(ends, 0, jnp.maximum(slots.left - 1, 0)),
            slots.answer.at[rows, place].set(tokens, mode="drop"),
            slots.generated + moved,
        )

    def _scored(
        self, params: Any, slots: Slots, targets: jax.Array, lengths: jax.Array
    ) -> tuple[Slots, jax.Array]:
        def goes_on(state: tuple[Slots, jax.Array, jax.Array]) -> jax.Array:
            return state[2] < lengths.max()

        def step(state: tuple[Slots, jax.Array, jax.Array]) -> tuple[Slots, jax.Array, jax.Array]:
            slots, scores, i = state
            caches, logits = self._step(params, slots)
            chances = jax.nn.log_softmax(logits.astype(np.float32))
            tokens = lax.dynamic_index_in_dim(targets, i, 1, False)
            found = jnp.take_along_axis(chances, tokens[:, None], 1)[:, 0]
            moved = i < lengths
            slots = slots._replace(
                caches=caches,
                token=jnp.where(moved, tokens, slots.token),
                position=slots.position + moved.astype(np.int32),
            )
            return slots, scores.at[:, i].set(jnp.where(moved, found, np.float32(0))), i + 1

        zeros = jnp.zeros((self.slots, STEPS), np.float32)
        slots, scores, _ = lax.while_loop(goes_on, step, (slots, zeros, jnp.int32(0)))
        return slots, scores


def _begun(slots: Slots, slot: Any, token: Any, position: Any, left: Any) -> Slots:
    return slots._replace(
        token=slots.token.at[slot].set(token),
        position=slots.position.at[slot].set(position),
        left=slots.left.at[slot].set(left),
        generated=slots.generated.at[slot].set(0),
    )
