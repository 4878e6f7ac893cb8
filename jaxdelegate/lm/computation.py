"""The functions that become the programs of a language model. Imports jax.

Caches are donated, so that programs change them in place.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.function.views import View
from jaxdelegate.lm.choices import Choice
from jaxdelegate.lm.compilation import Applies, Compilation, Run, embedded
from jaxdelegate.lm.graph import MASKED, LanguageGraph, Step
from jaxdelegate.lm.sampling import next_token
from jaxdelegate.lm.tasks import STEPS, Generated, Sequences, Task, arguments, caches, results
from jaxdelegate.model.records import Model
from jaxdelegate.xla.program import Program
from jaxdelegate.xla.weights import DeviceWeights

Caches = dict[str, jax.Array]


class Computation(Compilation):
    """Compiles the programs of a language model: of its steps, with those of embedders."""

    def __init__(
        self, models: Mapping[str, Model], view: View, graph: LanguageGraph, weights: DeviceWeights
    ) -> None:
        """`models`: the one with the steps, called "", and those of embedders, by part."""
        super().__init__(models, view, weights)
        self._graph = graph

    def program(self, task: Task) -> Program:
        """Compile the program of a task."""
        graph, step = self._graph, self._graph.step(task.step)

        def traced(applies: Applies) -> Run:
            return _Traced(task, step, graph, applies).run

        return self.compiled(
            f"{task.kind}_{task.step}",
            graph.keys(task.step),
            traced,
            [*caches(graph, task.slots, task.length), *arguments(graph, task, step)],
            results=len(results(graph, task)),
            donated=len(graph.states),
        )


class _Traced:
    """The function of one task, which JAX traces."""

    def __init__(self, task: Task, step: Step, graph: LanguageGraph, applies: Applies) -> None:
        """`applies`: the functions of models, by part; their `params` likewise."""
        self._task, self._graph, self._applies = task, graph, applies
        self._one = step
        self._stops = np.asarray(task.stops, np.int32)
        tasks: Mapping[str, Callable[..., tuple[Any, ...]]] = {
            "read": self._read,
            "generate": self._generate,
            "score": self._score,
        }
        self._run = tasks[task.kind]

    def run(self, params: Any, *arrays: Any) -> tuple[Any, ...]:
        """The new caches, then the other results."""
        names = [*self._graph.states]
        caches = dict(zip(names, arrays, strict=False))
        new, *others = self._run(params, caches, *arrays[len(names) :])
        return (*(new[name] for name in names), *others)

    # ---- of one sequence

    def _step(
        self, params: Any, caches: Mapping[str, Any], tokens: Any, start: Any, count: Any = 1
    ) -> tuple[Caches, jax.Array | None]:
        """Caches and the logits of the last token, after `count` tokens from `start` on.

        Those beyond have position 0, as in LiteRT-LM: some models recognize them by that.
        """
        graph, step = self._graph, self._one
        places = lax.iota(np.int32, step.length)
        positions = jnp.where(places < count, start + places, np.int32(0))
        inputs: dict[str, Any] = dict(caches)
        for name in graph.recurrent:  # another sequence's until here
            inputs[name] = jnp.where(start == 0, jnp.zeros_like(caches[name]), caches[name])
        if graph.tokens is not None:
            inputs["tokens"] = tokens.astype(graph.tokens).reshape(1, step.length)
        for name, shape in step.embeddings.items():
            e = graph.embedders[name]
            inputs[name] = embedded(self._applies, params, e, tokens).reshape(shape)
        inputs["input_pos"] = positions.astype(graph.positions)
        if step.mask is not None:
            inputs[step.mask] = self._mask(positions)
        outputs = self._applies[""](params[""], inputs)
        new = {**caches, **{name: outputs[name] for name in step.states}}
        logits = outputs["logits"].reshape(-1, graph.vocabulary)[-1] if step.has_logits else None
        return new, logits

    def _mask(self, positions: jax.Array) -> jax.Array:
        """[1, 1, tokens, length]: each token sees itself and those before it."""
        graph = self._graph
        sees = lax.iota(np.int32, self._task.length)[None] <= positions[:, None]
        if graph.masks != np.bool_:
            masked = np.asarray(MASKED[graph.masks], graph.masks)
            sees = jnp.where(sees, np.zeros((), graph.masks), masked)
        return sees[None, None]

    # ---- of all slots

    def _read(
        self, params: Any, caches: Caches, slot: Any, tokens: Any, start: Any, count: Any
    ) -> tuple[Caches]:
        if self._task.slots == 1:
            new, _ = self._step(params, caches, tokens, start, count)
            return (new,)
        own = {name: lax.dynamic_index_in_dim(c, slot, 0, False) for name, c in caches.items()}
        new, _ = self._step(params, own, tokens, start, count)
        changed = {
            name: lax.dynamic_update_index_in_dim(caches[name], value, slot, 0)
            for name, value in new.items()
        }
        return (changed,)

    def _steps(
        self, params: Any, caches: Caches, tokens: jax.Array, positions: jax.Array
    ) -> tuple[Caches, jax.Array]:
        """Caches and logits [slots, vocabulary] after the slots' last tokens."""

        def one(caches: Any, token: Any, position: Any) -> Any:
            return self._step(params, caches, token[None], position)

        if self._task.slots == 1:
            caches, logits = one(caches, tokens[0], positions[0])
            return caches, logits[None]
        both: tuple[Caches, jax.Array] = jax.vmap(one)(caches, tokens, positions)
        return both

    def _kept(self, is_active: Any, new: Caches, old: Mapping[str, Any]) -> Caches:
        """The new caches; resting slots keep their recurrent states."""
        if self._task.slots == 1:  # it does not rest
            return new
        kept = {}
        for name in self._graph.recurrent:
            ones = (1,) * (new[name].ndim - 1)
            kept[name] = jnp.where(is_active.reshape(-1, *ones), new[name], old[name])
        return {**new, **kept}

    def _generate(self, params: Any, caches: Caches, *values: Any) -> tuple[Any, ...]:
        sequences, rest = Sequences(*values[:5]), values[5:]
        choice, limit = Choice(*rest[:-1]), rest[-1]
        choose = jax.vmap(functools.partial(next_token, self._task.variant))
        found = Generated(
            jnp.zeros((STEPS, self._task.slots), np.int32),
            jnp.zeros((STEPS, self._task.slots), np.float32),
            jnp.zeros((), np.int32),
        )

        def goes_on(state: tuple[Caches, Sequences, Generated]) -> Any:
            _, sequences, found = state
            return (found.steps < limit) & jnp.any(sequences.left > 0)

        def step(state: tuple[Caches, Sequences, Generated]) -> Any:
            old, sequences, found = state
            caches, logits = self._steps(params, old, sequences.token, sequences.position)
            caches = self._kept(sequences.left > 0, caches, old)
            tokens, scores = choose(
                choice, logits.astype(np.float32), sequences.answer, sequences.generated
            )
            more = Generated(
                found.tokens.at[found.steps].set(tokens),
                found.scores.at[found.steps].set(scores),
                found.steps + 1,
            )
            return caches, self._advanced(sequences, tokens), more

        caches, _, found = lax.while_loop(goes_on, step, (caches, sequences, found))
        return caches, *found

    def _advanced(self, sequences: Sequences, tokens: jax.Array) -> Any:
        """The sequences after these tokens; resting ones stay as they are."""
        is_active = sequences.left > 0
        ends = jnp.isin(tokens, self._stops) if len(self._stops) else jnp.zeros_like(is_active)
        moved = is_active.astype(np.int32)
        answer: Any = sequences.answer
        if self._task.variant.has_rules:
            # Beyond the end: dropped.
            place = jnp.where(is_active, sequences.generated, self._graph.capacity)
            rows = lax.iota(np.int32, self._task.slots)
            answer = answer.at[rows, place].set(tokens, mode="drop")
        return Sequences(
            jnp.where(is_active, tokens, sequences.token),
            sequences.position + moved,
            jnp.where(ends, 0, jnp.maximum(sequences.left - 1, 0)),
            answer,
            sequences.generated + moved,
        )

    def _score(
        self, params: Any, caches: Caches, token: Any, position: Any, targets: Any, lengths: Any
    ) -> tuple[Caches, jax.Array]:
        def goes_on(state: Any) -> Any:
            return state[-1] < lengths.max()

        def step(state: Any) -> Any:
            old, token, position, scores, i = state
            caches, logits = self._steps(params, old, token, position)
            chances = jax.nn.log_softmax(logits.astype(np.float32))
            tokens = lax.dynamic_index_in_dim(targets, i, 1, False)
            found = jnp.take_along_axis(chances, tokens[:, None], 1)[:, 0]
            moved = i < lengths
            return (
                self._kept(moved, caches, old),
                jnp.where(moved, tokens, token),
                position + moved.astype(np.int32),
                scores.at[:, i].set(jnp.where(moved, found, np.float32(0))),
                i + 1,
            )

        zeros = jnp.zeros((self._task.slots, STEPS), np.float32)
        start = caches, token, position, zeros, jnp.int32(0)
        caches, _, _, scores, _ = lax.while_loop(goes_on, step, start)
        return caches, scores
