"""The functions that become the programs of a language model. Imports jax.

Caches are donated, so that programs change them in place; weights are those that a delegate would
use, one copy for all programs.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.function.functions import Functions
from jaxdelegate.function.model import CallableModel
from jaxdelegate.function.views import View
from jaxdelegate.function.weights import Params
from jaxdelegate.lm.choices import Choice
from jaxdelegate.lm.graph import MASKED, Embedder, LanguageGraph, Step
from jaxdelegate.lm.sampling import next_token
from jaxdelegate.lm.tasks import STEPS, Generated, Sequences, Task, arguments, caches, results
from jaxdelegate.model.records import Model
from jaxdelegate.xla import aot
from jaxdelegate.xla.program import Program
from jaxdelegate.xla.weights import DeviceWeights

Caches = dict[str, jax.Array]


class Computation:
    """Compiles the programs of a model for the device of `weights`, which take in its own."""

    def __init__(
        self, models: Mapping[str, Model], view: View, graph: LanguageGraph, weights: DeviceWeights
    ) -> None:
        """`models`: the one with the steps, called "", and those of embedders, by part."""
        self._models = {
            part: CallableModel(Functions(model, view, weights=weights))
            for part, model in models.items()
        }
        self._graph, self._weights = graph, weights

    def program(self, task: Task) -> Program:
        """Compile the program of a task."""
        step, graph = self._graph.step(task.step), self._graph
        keys = graph.keys(task.step)
        found = {p: self._models[p].function(k, weights="prepared") for p, k in keys.items()}
        params = {(part, name): a for part, (_, own) in found.items() for name, a in own.items()}
        names = [*params]
        run = _Traced(task, step, graph, {part: apply for part, (apply, _) in found.items()}).run
        own, states = len(names), len(graph.states)

        def program(*arrays: Any) -> tuple[Any, ...]:
            values = dict(zip(graph.states, arrays[own : own + states], strict=True))
            given: dict[str, Params] = {part: {} for part in keys}
            for (part, name), array in zip(names, arrays, strict=False):
                given[part][name] = array
            new, *others = run(given, values, arrays[own + states :])
            return (*(new[name] for name in graph.states), *others)

        program.__name__ = f"{task.kind}_{task.step}"
        given = [*caches(graph, task.slots, task.length), *arguments(graph, task, step)]
        weights = [(a.shape, a.dtype) for a in params.values()]
        executable, was_read = aot.compile_function(
            program,
            [*weights, *given],
            tuple(range(own, own + states)),
            self._weights.runtime,
            exact=False,
        )
        return Program(
            executable=executable,
            weights=tuple(params.values()),
            inputs=tuple(range(len(given))),
            outputs=tuple(range(len(results(graph, task)))),
            states={},
            donated=tuple(range(states)),
            was_read=was_read,
        )


class _Traced:
    """The function of one task, which JAX traces."""

    def __init__(
        self, task: Task, step: Step, graph: LanguageGraph, applies: Mapping[str, Any]
    ) -> None:
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

    def run(self, params: Any, caches: Caches, values: Sequence[Any]) -> tuple[Any, ...]:
        """The new caches, then the other results."""
        return self._run(params, caches, *values)

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
            inputs[name] = self._embedded(params, graph.embedders[name], tokens).reshape(shape)
        inputs["input_pos"] = positions.astype(graph.positions)
        if step.mask is not None:
            inputs[step.mask] = self._mask(positions)
        outputs = self._applies[""](params[""], inputs)
        new = {**caches, **{name: outputs[name] for name in step.states}}
        logits = outputs["logits"].reshape(-1, graph.vocabulary)[-1] if step.has_logits else None
        return new, logits

    def _embedded(self, params: Any, embedder: Embedder, tokens: Any) -> jax.Array:
        """[tokens, ...]: what an embedder computes from each token."""
        apply, own = self._applies[embedder.part], params[embedder.part]

        def one(token: Any) -> Any:
            return apply(
                own, {embedder.token: token.astype(embedder.dtype).reshape(embedder.shape)}
            )

        found: jax.Array = jax.vmap(one)(tokens)[embedder.result]
        return found

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
