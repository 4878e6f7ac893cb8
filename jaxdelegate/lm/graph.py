"""Which signatures of a model read a prompt and generate tokens, and what their inputs mean.

Source: the exports of litert-torch and ai-edge-torch, as LiteRT-LM's CPU executor reads them
(runtime/executor/litert_compiled_model_executor_utils.cc, llm_litert_compiled_model_executor.cc):
tokens or embeddings, the inputs of `places`, and caches that are inputs and outputs of the same
name. A drafter is that of llm_litert_mtp_drafter.cc.
"""

import dataclasses
import itertools
import re
import types
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.function.records import Signature, TensorInfo
from jaxdelegate.lm.places import (
    LOCAL_MASKS,
    MASK_TYPES,
    MASKS,
    POSITIONS,
    Attention,
    Places,
    first,
    why_unknown,
)
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.text import printable

TOKENS, LOGITS = ("tokens", "token_ids"), "logits"
ACTIVATIONS, PROJECTED = "activations", "projected_activations"
# Inputs that models in other parts compute from a token.
EMBEDDERS = {"embeddings": "embedder", "per_layer_embeddings": "per_layer_embedder"}
DRAFTER = "mtp_drafter"
_KEY = re.compile(r"(prefill|decode)(?:_(\d+))?(?:_cache_(\d+))?")
_VERIFY = "verify"
_CACHE = re.compile(r"(kv_cache_[kv]|[kv]_cache)_")  # an entry for each token, at its position
_SHORTEST = 256  # tokens; shorter caches would save little


@dataclasses.dataclass(frozen=True)
class Embedder:
    """A signature in another part that computes an input of the steps from one token.

    Attributes:
        part: of the bundle.
        key: of the signature.
        token: the name of its input.
        shape: of its input.
        dtype: of its input.
        result: the name of its output.
    """

    part: str
    key: str
    token: str
    shape: Shape
    dtype: np.dtype
    result: str


@dataclasses.dataclass(frozen=True)
class Step:
    """A signature that processes `length` tokens of one sequence at once.

    Attributes:
        key: of the signature.
        length: how many tokens.
        inputs: all inputs of the signature, by name.
        tokens: the name of the tokens' input; None: embedders take them.
        embeddings: the names of inputs that embedders compute.
        places: the names of those that say where tokens are.
        states: the names of caches, which are inputs and outputs.
        has_logits: whether it returns logits; if not, it fills caches only.
    """

    key: str
    length: int
    inputs: Mapping[str, TensorInfo]
    tokens: str | None
    embeddings: tuple[str, ...]
    places: Places
    states: tuple[str, ...]
    has_logits: bool


@dataclasses.dataclass(frozen=True)
class Drafter:
    """A small model in another part that proposes the tokens after the last one.

    It takes the embedding of a token and the activations of the model at the place before, sees the
    model's caches up to that place, and returns logits, and activations for its next call.

    Attributes:
        part: of the bundle.
        key: of the signature.
        inputs: of the signature, by name.
        places: the names of those that say where the token is.
        states: the names of the model's caches that it reads.
        embedder: of its tokens.
        verify: the step that checks proposals: it has logits and activations of all its tokens.
        activations: of one token, which that step returns.
    """

    part: str
    key: str
    inputs: Mapping[str, TensorInfo]
    places: Places
    states: tuple[str, ...]
    embedder: Embedder
    verify: Step
    activations: TensorInfo


@dataclasses.dataclass(frozen=True)
class LanguageGraph:
    """The steps of a language model.

    Attributes:
        prefill: the signatures that read a prompt, the shortest first.
        decode: the signature that generates a token.
        capacity: the number of tokens that caches hold.
        vocabulary: the number of logits.
        states: the caches of one sequence, by name.
        axes: the dimension of each cache that holds its tokens; caches that are not among them have
            another number of entries.
        embedders: what computes such inputs, by name.
        attention: which tokens each one sees.
        drafter: None: the bundle has none, or not one that can be used.
        why_no_drafter: why; empty: it has one.
    """

    prefill: tuple[Step, ...]
    decode: Step
    capacity: int
    vocabulary: int
    states: Mapping[str, TensorInfo]
    axes: Mapping[str, int]
    embedders: Mapping[str, Embedder]
    attention: Attention
    drafter: Drafter | None
    why_no_drafter: str

    @property
    def cache_lengths(self) -> tuple[int, ...]:
        """The lengths that caches may have, ascending: short sequences need not read all of them.

        The signatures are those of the longest one; not every model can be computed with others.
        """
        if not self.axes:
            return (self.capacity,)
        doubled = itertools.takewhile(
            lambda n: n < self.capacity, (_SHORTEST << i for i in itertools.count())
        )
        return *doubled, self.capacity

    @property
    def carried(self) -> Mapping[str, TensorInfo]:
        """The arrays of one sequence that programs carry: its caches, and what drafters need."""
        if self.drafter is None:
            return self.states
        return {**self.states, ACTIVATIONS: self.drafter.activations}

    def shape(self, name: str, length: int) -> Shape:
        """The shape of one of `carried` at one of these lengths."""
        shape = self.carried[name].shape
        if name not in self.axes:
            return shape
        axis = self.axes[name]
        return (*shape[:axis], length, *shape[axis + 1 :])

    def resized(self, inputs: Mapping[str, TensorInfo], length: int) -> Mapping[str, TensorInfo]:
        """The inputs of a signature for caches of another length."""
        masks = MASKS if self.ring < self.capacity else (*MASKS, *LOCAL_MASKS)

        def shape(name: str, info: TensorInfo) -> Shape:
            if name in self.states:
                return self.shape(name, length)
            if name not in masks:
                return info.shape
            return *info.shape[:-1], info.shape[-1] - self.capacity + length

        return {
            name: dataclasses.replace(info, shape=shape(name, info))
            for name, info in inputs.items()
        }

    @property
    def ring(self) -> int:
        """How many entries those caches have that local masks show; 0: it has no such masks."""
        name = self.decode.places.local_mask
        return 0 if name is None else self.decode.inputs[name].shape[-1]

    def step(self, key: str) -> Step:
        """The step of a signature."""
        steps = [*self.prefill, self.decode]
        if self.drafter is not None:
            steps.append(self.drafter.verify)
        return next(step for step in steps if step.key == key)

    def is_speculative(self, key: str) -> bool:
        """Whether the step of a signature checks what a drafter proposes."""
        return self.drafter is not None and self.drafter.verify.key == key

    def keys(self, step: str) -> dict[str, str]:
        """The signatures that a step runs, by part: its own, as "", and those of other parts."""
        found = {"": step} | {e.part: e.key for e in self.embedders.values()}
        if self.drafter is not None and self.is_speculative(step):
            found |= {e.part: e.key for e in (self.drafter, self.drafter.embedder)}
        return found

    @property
    def recurrent(self) -> tuple[str, ...]:
        """The states that have no entry for each token: a convolution's last inputs, for example.

        They are after the last token that was processed, and cannot go back to an earlier one.
        """
        return tuple(name for name in self.states if not _CACHE.match(name))

    @property
    def reach(self) -> int | None:
        """How many tokens a sequence can go back; None: to its beginning.

        Caches of a local mask may have fewer entries, where later tokens overwrite earlier ones.
        """
        if self.recurrent:
            return 0
        if self.attention.window is None or not 0 < self.ring < self.capacity:
            return None
        return self.ring - self.attention.window

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of tokens that the prefill signatures read at once, ascending."""
        return tuple(step.length for step in self.prefill)


def language_graph(
    signatures: Mapping[str, Signature],
    source: str,
    most_tokens: int | None = None,
    others: Mapping[str, Mapping[str, Signature]] = types.MappingProxyType({}),
    attention: Attention = Attention(),  # noqa: B008 (immutable)
) -> LanguageGraph:
    """Find the steps among a model's signatures.

    Args:
        signatures: of the model.
        source: its name, for messages.
        most_tokens: how many tokens are wanted, where there are signatures for several lengths of
            caches; None: the longest.
        others: the signatures of the bundle's other models, by part.
        attention: what the bundle declares.

    Raises:
        ModelError: a signature is missing, or has an input that the engine cannot provide.
    """
    reader = _Reader(signatures, source, others)
    keys = reader.keys(most_tokens)
    steps = {key: reader.step(key) for key in keys}
    decode = [step for key, step in steps.items() if key.startswith("decode")]
    prefill = sorted((s for s in steps.values() if s not in decode), key=lambda s: s.length)
    if len(decode) != 1 or not decode[0].has_logits:
        there = ", ".join(signatures) or "none"
        reader.fail(f"expected a signature 'decode' with the output 'logits', got {there}")
    (step,) = decode
    capacity = reader.capacity(step)
    reader.check_window(step, capacity, attention.window)
    drafter, why = reader.drafter_or_why(step)
    return LanguageGraph(
        prefill=tuple(prefill),
        decode=step,
        capacity=capacity,
        vocabulary=signatures[step.key].outputs[LOGITS].shape[-1],
        states={name: step.inputs[name] for name in step.states},
        axes=_axes(step.inputs, step.states, capacity),
        embedders={name: reader.embedder(name) for name in step.embeddings},
        attention=attention,
        drafter=drafter,
        why_no_drafter=why,
    )


def _axes(inputs: Mapping[str, TensorInfo], states: Iterable[str], capacity: int) -> dict[str, int]:
    """The only dimension of each cache that is as long as the capacity."""
    shapes = {name: inputs[name].shape for name in states if _CACHE.match(name)}
    counts = {name: shape.count(capacity) for name, shape in shapes.items()}
    if any(count > 1 for count in counts.values()):
        return {}
    return {name: shapes[name].index(capacity) for name, count in counts.items() if count}


def _is_one_token(info: TensorInfo) -> bool:
    return info.dtype.kind in "iu" and int(np.prod(info.shape)) == 1


class _Reader:
    def __init__(
        self,
        signatures: Mapping[str, Signature],
        source: str,
        others: Mapping[str, Mapping[str, Signature]],
    ) -> None:
        self._signatures, self._source, self._others = signatures, source, others

    def keys(self, most_tokens: int | None) -> list[str]:
        """Those of one length of caches: the shortest that is long enough, or the longest."""
        found = {key: m for key in self._signatures if (m := _KEY.fullmatch(key)) is not None}
        lengths = sorted({int(m[3] or 0) for m in found.values()})
        fitting = [n for n in lengths if most_tokens is not None and n >= most_tokens]
        chosen = min(fitting) if fitting else max(lengths, default=0)
        return [key for key, m in found.items() if int(m[3] or 0) == chosen]

    def step(self, key: str) -> Step:
        inputs, outputs = self._signatures[key].inputs, self._signatures[key].outputs
        embeddings = tuple(name for name in EMBEDDERS if name in inputs)
        tokens = None if "embeddings" in embeddings else first(TOKENS, inputs)
        places, states = Places.among(inputs), tuple(name for name in inputs if name in outputs)
        self._check(key, inputs, places, {tokens, *embeddings, *states})
        if places.positions is None or (tokens is None and "embeddings" not in embeddings):
            missing = "input_pos" if places.positions is None else "tokens"
            self.fail(
                f"signature {key!r}: expected the inputs 'tokens' (or 'embeddings') and "
                f"'input_pos', got no {missing}"
            )
        return Step(
            key=key,
            length=int(np.prod(inputs[places.positions].shape)),
            inputs=inputs,
            tokens=tokens,
            embeddings=embeddings,
            places=places,
            states=states,
            has_logits=LOGITS in outputs,
        )

    def _check(
        self, key: str, inputs: Mapping[str, TensorInfo], places: Places, known: set[str | None]
    ) -> None:
        """Whether all inputs are known, and masks have a known type."""
        if others := [name for name in inputs if name not in known | places.names]:
            self.fail(f"signature {key!r} has inputs that are not supported: {why_unknown(others)}")
        for name in (places.mask, places.local_mask):
            if name is not None and inputs[name].dtype not in MASK_TYPES:
                dtype = inputs[name].dtype
                self.fail(f"expected a mask of float32, float16 or bool, got {dtype}")

    def embedder(self, name: str) -> Embedder:
        """The signature of another part that computes an input from one token."""
        part = EMBEDDERS[name]
        for key, signature in self._others.get(part, {}).items():
            ends = len(signature.inputs), len(signature.outputs)
            token, info = next(iter(signature.inputs.items()), ("", None))
            if ends == (1, 1) and info is not None and _is_one_token(info):
                (result,) = signature.outputs
                return Embedder(part, key, token, info.shape, info.dtype, result)
        return self.fail(
            f"expected a model {part!r} in the bundle, with a signature of one token, which "
            f"computes the input {name!r}, got {', '.join(self._others) or 'no other models'}"
        )

    def drafter_or_why(self, decode: Step) -> tuple[Drafter | None, str]:
        """The drafter, or why the bundle has none that can be used."""
        try:
            return self._drafter(decode), ""
        except ModelError as error:
            return None, str(error)

    def _drafter(self, decode: Step) -> Drafter:
        found = self._others.get(DRAFTER, {})
        if not found or _VERIFY not in self._signatures:
            what = f"a model {DRAFTER!r}" if not found else f"a signature {_VERIFY!r} of its model"
            self.fail(f"speculative decoding needs {what}, which the bundle does not have")
        key, signature = next(iter(found.items()))  # LiteRT-LM takes the first one, too
        verify, inputs = self.step(_VERIFY), signature.inputs
        places, states = Places.among(inputs), tuple(n for n in inputs if n in decode.states)
        self._check(key, inputs, places, {ACTIVATIONS, *states})
        self._require(key, inputs, (ACTIVATIONS, places.positions or POSITIONS[0]))
        self._require(key, signature.outputs, (LOGITS, PROJECTED))
        self._require(_VERIFY, self._signatures[_VERIFY].outputs, (LOGITS, ACTIVATIONS))
        self._check_caches(decode, {_VERIFY: (verify.inputs, verify.states), key: (inputs, states)})
        info = self._signatures[_VERIFY].outputs[ACTIVATIONS]
        width = int(np.prod(info.shape)) // verify.length
        return Drafter(
            part=DRAFTER,
            key=key,
            inputs=inputs,
            places=places,
            states=states,
            embedder=self.embedder("embeddings"),
            verify=verify,
            activations=dataclasses.replace(info, shape=(1, 1, width)),
        )

    def _require(self, key: str, given: Collection[str], names: Collection[str]) -> None:
        if not {*names} <= {*given}:
            wanted, got = (", ".join(these) for these in (names, given))
            self.fail(f"signature {key!r}: expected the inputs or outputs {wanted}, got {got}")

    def _check_caches(
        self, decode: Step, others: Mapping[str, tuple[Mapping[str, TensorInfo], Iterable[str]]]
    ) -> None:
        """Whether the other signatures have the same caches, of which tokens can be taken back."""
        if recurrent := [name for name in decode.states if not _CACHE.match(name)]:
            self.fail(
                "speculative decoding cannot take rejected tokens back from the states "
                f"{', '.join(recurrent)}"
            )
        for key, (inputs, states) in others.items():
            for name in states:
                if inputs[name].shape != decode.inputs[name].shape:
                    self.fail(
                        f"signature {key!r}: expected the cache {name!r} of the shape "
                        f"{decode.inputs[name].shape}, got {inputs[name].shape}"
                    )

    def capacity(self, step: Step) -> int:
        """The length of the mask; without one, the longest dimension of a cache."""
        if step.places.mask is not None:
            return step.inputs[step.places.mask].shape[-1]
        shapes = [step.inputs[name].shape for name in step.states if _CACHE.match(name)]
        if not shapes:
            self.fail(
                "expected a mask or caches named kv_cache_..., whose length is the most tokens"
            )
        return max(map(max, shapes))

    def check_window(self, step: Step, capacity: int, window: int | None) -> None:
        """Whether masks of fewer places than tokens show a window that these places hold."""
        name = step.places.local_mask
        places = capacity if name is None else step.inputs[name].shape[-1]
        if places < capacity and not 0 < (window or 0) <= places:
            self.fail(
                f"{name!r} has {places} places: expected a sliding_window_size of 1 to {places} in "
                f"the bundle's ExecutorMetadata, got {window}"
            )

    def fail(self, problem: str) -> NoReturn:
        raise ModelError(f"{printable(self._source)}: {printable(problem)}")


def prefill_plan(count: int, start: int, lengths: Iterable[int], capacity: int) -> list[int]:
    """The lengths of the prefill steps for `count` tokens from position `start` on.

    The shortest step that holds all tokens, unless they fill less than half of it; then the longest
    one that they fill, and the rest in the same way. A step writes a cache entry for each of its
    tokens, so it must end within the capacity; where none does, 1 stands for a decode step.
    """
    plan = list[int]()
    while count > 0:
        fitting = sorted(n for n in lengths if start + n <= capacity)
        holding = [n for n in fitting if n >= count]
        filled = [n for n in fitting if n < count]
        if holding and (holding[0] <= 2 * count or not filled):
            step = holding[0]
        else:
            step = filled[-1] if filled else 1
        plan.append(step)
        start, count = start + step, count - step
    return plan
