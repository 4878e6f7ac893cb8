"""The functions that become the programs of a language model. Imports jax.

Caches are donated, so that programs change them in place.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.function.views import View
from jaxdelegate.lm.compilation import Applies, Compilation, Run, embedded, with_soft
from jaxdelegate.lm.graph import ACTIVATIONS, LOGITS, PROJECTED, Drafter, LanguageGraph, Step
from jaxdelegate.lm.hidden_states import HIDDEN
from jaxdelegate.lm.largest import largest
from jaxdelegate.lm.masks import place_inputs
from jaxdelegate.lm.places import Places
from jaxdelegate.lm.program_spec import (
    MAX_DECODE_STEPS,
    DecodeOutput,
    ProgramSpec,
    ScoreOutput,
    SlotArrays,
    arguments,
    cache_arrays,
    host_inputs,
    packed,
    results,
    signatures,
    unpacked,
)
from jaxdelegate.lm.sampler import Chosen, most_likely, next_token
from jaxdelegate.lm.sampling_params import SamplingArrays
from jaxdelegate.model.records import Model
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.quantized_cache import QuantizedCache
from jaxdelegate.op_lowering.slicing.rule import ONE_SEQUENCE
from jaxdelegate.program import Program
from jaxdelegate.xla import loops
from jaxdelegate.xla.options import platform_of

Caches = dict[str, Any]  # arrays, or a QuantizedCache
_SLOT_ARRAYS = len(SlotArrays._fields)
_ENTRIES_OF_BLOCK = 64


class Computation(Compilation):
    """Compiles the programs of a language model: of its steps, with those of embedders."""

    def __init__(
        self,
        models: Callable[[ProgramSpec], Mapping[str, Model]],
        view: View,
        graph: LanguageGraph,
        weights: DeviceWeights,
    ) -> None:
        """Nothing is compiled yet.

        Args:
            models: by part, for a program; the one with the steps is called "".
            view: of the models.
            graph: the steps.
            weights: of the device.
        """
        super().__init__(view, weights)
        self._models, self._graph = models, graph
        self._platform = platform_of(weights.runtime.device.platform)
        self._steps = loops.STEPS[self._loops]

    def program(self, spec: ProgramSpec) -> Program:
        """Compile a program."""
        graph, step = self._graph, self._graph.step(spec.step)

        def traced(applies: Applies) -> Run:
            return _Traced(spec, step, graph, applies, self._platform, self._steps).run

        inputs = graph.resized(step.inputs, spec.length)
        return self.compiled(
            f"{spec.kind}_{spec.step}",
            self._models(spec),
            signatures(graph, spec),
            traced,
            arguments(graph, spec, step),
            {"": {name: info.shape for name, info in inputs.items()}},
            results=len(results(graph, spec)),
            donated=len(cache_arrays(graph, spec.slots, spec.length)),
        )


class _Rows(NamedTuple):
    """What a step returns for each of its tokens.

    Attributes:
        tokens: int32 [slots, rows]: the last one, and those that a drafter proposes.
        logits: [slots, rows, vocabulary] after them.
        activations: [slots, rows, ...], for a drafter; None: no drafter runs.
        hidden_state: float32 [slots, n]; None: no one asks for it.
    """

    tokens: jax.Array
    logits: jax.Array
    activations: jax.Array | None
    hidden_state: jax.Array | None


class _Traced:
    """The function of one program, which JAX traces."""

    def __init__(
        self,
        spec: ProgramSpec,
        step: Step,
        graph: LanguageGraph,
        applies: Applies,
        platform: str,
        steps: tuple[int, ...],
    ) -> None:
        """Trace nothing yet.

        Args:
            spec: what the program does.
            step: what the model computes.
            graph: the model's signatures.
            applies: the functions of models, by part; their `params` likewise.
            platform: what it is for.
            steps: how many decode steps each of its loops runs at a time, the most first; 1 last.
        """
        self._spec, self._graph, self._applies, self._at_a_time = spec, graph, applies, steps
        self._platform = platform
        self._rows = spec.rows
        self._one = step
        self._drafter = graph.drafter if graph.is_speculative(spec.step) else None
        self._stops = np.asarray(spec.stops, np.int32)
        self._hidden_size = graph.hidden_size if spec.variant.has_hidden_state else 0
        kinds: Mapping[str, Callable[..., tuple[Any, ...]]] = {
            "prefill": self._prefill,
            "decode": self._decode,
            "score": self._score_one_slot if spec.tokens else self._score,
            "copy": self._copy,
        }
        self._run = kinds[spec.kind]

    def run(self, params: Any, *arrays: Any) -> tuple[Any, ...]:
        """The new caches, then the other results as one array."""
        *ours, flat = arrays
        values = unpacked(flat, host_inputs(self._graph, self._spec, self._one))
        new, *others = self._run(params, self._named(ours), *values)
        carried = jax.tree.leaves([new[name] for name in self._graph.carried])
        return (*carried, *([packed(jnp, others)] if others else ()))

    def _named(self, arrays: Sequence[Any]) -> Caches:
        """Caches, and the factors of adapters, which are not returned; a copy has none."""
        graph, rest = self._graph, iter(arrays)
        caches = {
            name: next(rest)
            if graph.elements_axis(name) is None
            else QuantizedCache(next(rest), next(rest))
            for name in graph.carried
        }
        return {**caches, **dict(zip(graph.adapters, rest, strict=False))}

    # ---- of one sequence

    def _step(
        self,
        params: Any,
        caches: Mapping[str, Any],
        tokens: Any,
        start: Any,
        count: Any,
        *soft: Any,
    ) -> tuple[Caches, dict[str, jax.Array]]:
        """Caches and other outputs, after `count` tokens from `start` on.

        Those beyond have position 0, as in LiteRT-LM: some models recognize them by that. `soft`:
        the embeddings of tokens that are negative; other embedders see token 0 there.
        """
        graph, step = self._graph, self._one
        inputs: dict[str, Any] = {name: caches[name] for name in step.states}
        for name in graph.recurrent:  # another sequence's until here
            inputs[name] = jnp.where(start == 0, jnp.zeros_like(inputs[name]), inputs[name])
        if step.tokens is not None:
            info = step.inputs[step.tokens]
            inputs[step.tokens] = tokens.astype(info.dtype).reshape(info.shape)
        for name in step.embeddings:
            known = jnp.maximum(tokens, 0) if soft else tokens
            found = embedded(self._applies, params, graph.embedders[name], known)
            if soft and name == "embeddings":
                found = with_soft(found, tokens, soft[0])
            inputs[name] = found.reshape(step.inputs[name].shape)
        inputs |= self._placed(step.places, step.inputs, start, count)
        inputs |= {name: caches[name] for name in step.adapters}
        outputs = self._applies[""](params[""], inputs)
        carried = {n: self._as_carried(n, outputs.pop(n)) for n in step.states}
        return {**caches, **carried}, outputs

    def _as_carried(self, name: str, x: Any) -> Any:
        axis = self._graph.elements_axis(name)
        if axis is None:
            return downcast(x, self._graph.dtype(name))
        return x if isinstance(x, QuantizedCache) else QuantizedCache.of(x, axis)

    def _placed(self, places: Places, inputs: Any, start: Any, count: Any) -> dict[str, jax.Array]:
        graph, length = self._graph, self._spec.length
        ring = graph.ring if graph.ring < graph.capacity else length
        resized = graph.resized(inputs, length)
        return place_inputs(places, resized, start, count, graph.attention, ring)

    def _proposed(
        self, drafter: Drafter, params: Any, caches: Mapping[str, Any], token: Any, position: Any
    ) -> jax.Array:
        """The tokens that may follow the last one, as many as the step checks.

        The drafter sees the caches up to the place before that token, for each of them.
        """
        apply, own = self._applies[drafter.part], params[drafter.part]
        before = jnp.maximum(position - 1, 0)
        inputs: dict[str, Any] = {name: caches[name] for name in drafter.states}
        inputs |= self._placed(drafter.places, drafter.inputs, before, np.int32(1))
        info, activations, tokens = drafter.inputs[ACTIVATIONS], caches[ACTIVATIONS], [token]
        for _ in range(drafter.verify.length - 1):
            embedding = embedded(self._applies, params, drafter.embedder, tokens[-1][None])
            both = jnp.concatenate([embedding.ravel(), activations.ravel()])
            outputs = apply(
                own, {**inputs, ACTIVATIONS: both.astype(info.dtype).reshape(info.shape)}
            )
            activations = outputs[PROJECTED]
            tokens.append(largest(outputs[LOGITS].ravel(), self._platform))
        return jnp.stack(tokens[1:])

    # ---- of all slots

    def _prefill(self, params: Any, caches: Caches, *values: Any) -> tuple[Caches]:
        if self._spec.steps == 1:
            return (self._prefill_step(params, caches, *values),)
        *rows, steps = values
        factors = {name: caches[name] for name in self._graph.adapters}

        def step(i: Any, carried: Caches) -> Caches:
            values = (lax.dynamic_index_in_dim(row, i, 0, False) for row in rows)
            new = self._prefill_step(params, {**carried, **factors}, *values)
            return {name: new[name] for name in carried}

        carried = {name: caches[name] for name in self._graph.carried}
        return (lax.fori_loop(0, steps, step, carried),)

    def _prefill_step(self, params: Any, caches: Caches, slot: Any, *values: Any) -> Caches:
        """`values`: tokens, starts and counts, and the embeddings of soft tokens."""
        if self._spec.slots == 1:
            new, _ = self._step(params, caches, *values)
            return new
        if self._spec.prompts > 1:
            # Rows without a prompt are beyond the slots: what they compute is dropped.
            own = jax.tree.map(lambda cache: cache.at[slot].get(mode="clip"), caches)
            step = functools.partial(self._step, params)
            news, _ = jax.vmap(step)(own, *values)

            def put(cache: jax.Array, new: jax.Array) -> jax.Array:
                return cache.at[slot].set(new, mode="drop")

            found: Caches = jax.tree.map(put, {name: caches[name] for name in news}, news)
            return found
        new, _ = self._step(params, _of_slot(caches, slot), *values)
        return _with_slot(caches, slot, new)

    def _copy(
        self, _params: Any, caches: Caches, source: Any, target: Any, count: Any
    ) -> tuple[Caches]:
        """A CPU copies no more than the first `count` entries, in blocks, where it can."""
        axes = self._graph.axes
        if self._platform != "cpu" or not axes:
            return (_with_slot(caches, target, _of_slot(caches, source)),)
        whole = {name: cache for name, cache in caches.items() if name not in axes}

        def block(i: Any, now: Caches) -> Caches:
            put = functools.partial(_with_block, i, source, target)
            return {n: jax.tree.map(functools.partial(put, 1 + axes[n]), now[n]) for n in now}

        parts = {name: cache for name, cache in caches.items() if name in axes}
        parts = lax.fori_loop(0, -(-count // _ENTRIES_OF_BLOCK), block, parts)
        return ({**_with_slot(caches, target, _of_slot(whole, source)), **parts},)

    def _steps(
        self, params: Any, caches: Caches, tokens: jax.Array, positions: jax.Array
    ) -> tuple[Caches, "_Rows"]:
        """Caches, and the rows of a step after each slot's last token."""

        def one(caches: Any, token: Any, position: Any) -> Any:
            tokens = token[None]
            if self._drafter is not None:
                more = self._proposed(self._drafter, params, caches, token, position)
                tokens = jnp.concatenate([tokens, more])
            new, outputs = self._step(params, caches, tokens, position, np.int32(len(tokens)))
            logits = outputs[LOGITS].reshape(-1, self._graph.vocabulary)[-len(tokens) :]
            hidden = outputs.get(HIDDEN)
            return new, _Rows(
                tokens,
                logits,
                self._activations(outputs, len(tokens)),
                None if hidden is None else hidden.ravel().astype(np.float32),
            )

        if self._rows == 1:
            caches, rows = one(caches, tokens[0], positions[0])
            return caches, jax.tree.map(lambda array: array[None], rows)
        both: tuple[Caches, _Rows] = jax.vmap(one)(caches, tokens, positions)
        return both

    def _activations(self, outputs: Mapping[str, jax.Array], rows: int) -> jax.Array | None:
        if self._drafter is None:
            return None
        return outputs[ACTIVATIONS].reshape(rows, *self._drafter.activations.shape)

    def _kept(self, is_active: Any, new: Caches, old: Mapping[str, Any]) -> Caches:
        """The new caches; resting slots keep their recurrent states."""
        if self._rows == 1 and self._at_a_time == (1,):  # it does not rest
            return new
        kept = {}
        for name in self._graph.recurrent:
            ones = (1,) * (new[name].ndim - 1)
            kept[name] = jnp.where(is_active.reshape(-1, *ones), new[name], old[name])
        return {**new, **kept}

    def _decode(self, params: Any, caches: Caches, *values: Any) -> tuple[Any, ...]:
        if not self._spec.is_alone:
            return self._decoded(params, caches, *values)
        *values_of_slot, slot = values
        new, *found = self._decoded(params, _of_slot(caches, slot), *values_of_slot)
        return (_with_slot(caches, slot, new), *found)

    def _decoded(self, params: Any, caches: Caches, *values: Any) -> tuple[Any, ...]:
        sequences, rest = SlotArrays(*values[:_SLOT_ARRAYS]), values[_SLOT_ARRAYS:]
        sampling, limit = SamplingArrays(*rest[:-1]), rest[-1]
        shape = MAX_DECODE_STEPS, self._rows, self._one.length
        top = (*shape, self._spec.variant.top)
        found = DecodeOutput(
            jnp.zeros(shape, np.int32),
            jnp.zeros(shape, np.float32),
            jnp.zeros(shape[:2], np.int32),
            jnp.zeros((), np.int32),
            hidden_state=jnp.zeros((self._rows, self._hidden_size), np.float32),
            top_tokens=jnp.zeros(top, np.int32),
            top_scores=jnp.zeros(top, np.float32),
        )

        def step(state: tuple[Caches, SlotArrays, DecodeOutput]) -> Any:
            old, sequences, found = state
            caches, rows = self._steps(params, old, sequences.token, sequences.position)
            caches = self._kept(sequences.left > 0, caches, old)
            chosen = self._chosen(sampling, sequences, rows)
            tokens = chosen.token
            # A row is right if all tokens that it saw are those that were chosen.
            agree = jnp.cumprod(tokens[:, :-1] == rows.tokens[:, 1:], axis=1, dtype=np.int32)
            counts, sequences = self._advanced(sequences, tokens, agree.sum(1, np.int32) + 1)
            if rows.activations is not None:
                caches[ACTIVATIONS] = self._last(rows.activations, counts)
            more = DecodeOutput(
                found.tokens.at[found.steps].set(tokens),
                found.scores.at[found.steps].set(chosen.score),
                found.counts.at[found.steps].set(counts),
                found.steps + 1,
                hidden_state=self._last_hidden_state(rows, counts, found.hidden_state),
                top_tokens=found.top_tokens.at[found.steps].set(chosen.top_tokens),
                top_scores=found.top_scores.at[found.steps].set(chosen.top_scores),
            )
            return caches, sequences, more

        state = caches, sequences, found
        for count in self._at_a_time:

            def goes_on(state: Any, last: Any = limit - count) -> Any:
                _, sequences, found = state
                return (found.steps <= last) & jnp.any(sequences.left > 0)

            state = lax.while_loop(goes_on, functools.partial(_repeated, step, count), state)
        caches, _, found = state
        return caches, *found

    def _chosen(self, sampling: SamplingArrays, sequences: SlotArrays, rows: "_Rows") -> Chosen:
        """The tokens after those of all rows and their scores, [slots, rows], as if one by one."""
        n = self._one.length
        answer = self._written(sequences, rows.tokens[:, 1:], n - 1)  # a row has those before it
        many = functools.partial(jnp.repeat, repeats=n, axis=0)
        chosen = functools.partial(next_token, self._spec.variant, platform=self._platform)
        found = jax.vmap(chosen)(
            SamplingArrays(*map(many, sampling)),
            rows.logits.reshape(-1, self._graph.vocabulary).astype(np.float32),
            many(answer),
            (sequences.generated[:, None] + lax.iota(np.int32, n)[None]).ravel(),
        )
        return Chosen(*(array.reshape(self._rows, n, *array.shape[1:]) for array in found))

    def _written(self, sequences: SlotArrays, tokens: jax.Array, counts: Any) -> Any:
        """The answers with the first of these tokens, where the program takes answers."""
        if not self._spec.variant.has_logits_processors:
            return sequences.answer
        numbers = lax.iota(np.int32, tokens.shape[1])[None]
        places = sequences.generated[:, None] + numbers
        kept = numbers < jnp.reshape(counts, (-1, 1))
        places = jnp.where(kept, places, self._graph.capacity)  # beyond the end: dropped
        slots = lax.iota(np.int32, self._rows)[:, None]
        return sequences.answer.at[slots, places].set(tokens, mode="drop")

    def _advanced(
        self, sequences: SlotArrays, tokens: jax.Array, right: jax.Array
    ) -> tuple[jax.Array, SlotArrays]:
        """How many of these tokens each sequence gets, and the sequences after them.

        Args:
            sequences: those that rest stay as they are.
            tokens: [slots, rows].
            right: [slots]: how many of the tokens are right; one that ends an answer is the last.
        """
        n = tokens.shape[1]
        is_stop = jnp.isin(tokens, self._stops) if len(self._stops) else jnp.zeros((1, n), bool)
        until_stop = jnp.where(is_stop, lax.iota(np.int32, n)[None] + 1, np.int32(n + 1)).min(1)
        counts = jnp.minimum(jnp.minimum(right, until_stop), sequences.left)
        last = self._at(tokens, counts)
        return counts, SlotArrays(
            jnp.where(counts > 0, last, sequences.token),
            sequences.position + counts,
            jnp.where(until_stop <= counts, 0, sequences.left - counts),
            self._written(sequences, tokens, counts),
            sequences.generated + counts,
        )

    @staticmethod
    def _last_hidden_state(rows: "_Rows", counts: jax.Array, before: jax.Array) -> jax.Array:
        if rows.hidden_state is None:
            return before
        return jnp.where(counts[:, None] > 0, rows.hidden_state, before)

    def _last(self, activations: jax.Array, counts: jax.Array) -> jax.Array:
        """The activations of the last row that is right, in the shape of the other caches."""
        found = self._at(activations, counts)
        return found[0] if self._rows == 1 else found

    def _at(self, rows: jax.Array, counts: jax.Array) -> jax.Array:
        """The last of each slot's first rows; of none, the first one."""
        slots = lax.iota(np.int32, self._rows)
        return rows[slots, jnp.maximum(counts - 1, 0)]

    def _score(
        self, params: Any, caches: Caches, token: Any, position: Any, targets: Any, lengths: Any
    ) -> tuple[Any, ...]:
        most, top = (self._rows, MAX_DECODE_STEPS), self._spec.variant.top
        found = ScoreOutput(
            jnp.zeros(most, np.float32),
            jnp.zeros(most if top else (self._rows, 0), np.int32),
            jnp.zeros((*most, top), np.int32),
            jnp.zeros((*most, top), np.float32),
        )

        def goes_on(state: Any) -> Any:
            return state[-1] < lengths.max()

        def step(state: Any) -> Any:
            old, token, position, found, i = state
            caches, rows = self._steps(params, old, token, position)
            tokens = lax.dynamic_index_in_dim(targets, i, 1, False)
            moved = i < lengths
            return (
                self._kept(moved, caches, old),
                jnp.where(moved, tokens, token),
                position + moved.astype(np.int32),
                self._with_scores(found, i, moved, tokens, rows.logits[:, 0].astype(np.float32)),
                i + 1,
            )

        start = caches, token, position, found, jnp.int32(0)
        caches, _, _, found, _ = lax.while_loop(goes_on, step, start)
        return caches, *found

    def _with_scores(
        self, found: ScoreOutput, i: jax.Array, moved: jax.Array, tokens: jax.Array, logits: Any
    ) -> ScoreOutput:
        """Add the scores of one token of each sequence that `moved`, by its logits."""
        scores, *others = self._scores(tokens, logits)
        columns = ScoreOutput(jnp.where(moved, scores, np.float32(0)), *others)
        if not found.ranks.size:
            return found._replace(scores=found.scores.at[:, i].set(columns.scores))
        pairs = zip(found, columns, strict=True)
        return ScoreOutput(*(array.at[:, i].set(column) for array, column in pairs))

    def _scores(self, tokens: jax.Array, logits: jax.Array) -> ScoreOutput:
        """The scores of one token for each row of logits."""
        chances = jax.nn.log_softmax(logits)
        of_tokens = jnp.take_along_axis(chances, tokens[:, None], 1)
        top = self._spec.variant.top
        best = functools.partial(most_likely, count=top, platform=self._platform)
        ranks = (chances >= of_tokens).sum(1, np.int32)
        return ScoreOutput(of_tokens[:, 0], ranks[: None if top else 0], *jax.vmap(best)(logits))

    def _score_one_slot(
        self,
        params: Any,
        caches: Caches,
        slot: Any,
        tokens: Any,
        start: Any,
        targets: Any,
        count: Any,
    ) -> tuple[Any, ...]:
        """`count` tokens of a sequence at once; the other rows are the last of them again."""
        own = caches if self._spec.slots == 1 else _of_slot(caches, slot)
        rows = jnp.minimum(lax.iota(np.int32, self._spec.tokens), count - 1)

        def one(token: Any, place: Any) -> tuple[Caches, jax.Array]:
            new, outputs = self._step(params, own, token[None], place, np.int32(1))
            return new, outputs[LOGITS].ravel().astype(np.float32)

        at_once = jax.vmap(one, out_axes=(None, 0), axis_name=ONE_SEQUENCE)
        new, logits = at_once(tokens[rows], start + rows)
        if self._spec.slots > 1:
            new = _with_slot(caches, slot, new)
        return new, *(array[None] for array in self._scores(targets, logits))


def _repeated(step: Callable[[Any], Any], count: int, state: Any) -> Any:
    for _ in range(count):
        state = step(state)
    return state


def _of_slot(caches: Mapping[str, Any], slot: Any) -> Caches:
    found: Caches = jax.tree.map(
        lambda c: lax.dynamic_index_in_dim(c, slot, 0, False), dict(caches)
    )
    return found


def _with_block(block: Any, source: Any, target: Any, axis: int, array: Any) -> jax.Array:
    """A cache [slots, ...] where a slot has a block of another one's entries, which `axis` has."""
    shape = [1, *array.shape[1:]]
    shape[axis] = min(_ENTRIES_OF_BLOCK, shape[axis])
    start = [np.int32(0)] * array.ndim
    start[axis] = block * shape[axis]
    own = lax.dynamic_slice(array, (source, *start[1:]), shape)
    return lax.dynamic_update_slice(array, own, (target, *start[1:]))


def _with_slot(caches: Mapping[str, Any], slot: Any, new: Mapping[str, Any]) -> Caches:
    put = functools.partial(lax.dynamic_update_index_in_dim, axis=0)
    found: Caches = jax.tree.map(
        lambda c, value: put(c, value, slot), {name: caches[name] for name in new}, dict(new)
    )
    return found
