"""The steps of a language model, and what their inputs mean.

Source: the exports of litert-torch and ai-edge-torch: tokens or embeddings, the inputs of `places`,
and caches that are inputs and outputs of the same name.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import GenerationError
from jaxdelegate.function.records import TensorInfo
from jaxdelegate.lm.places import LOCAL_MASKS, MASKS, Attention, Places
from jaxdelegate.lm.soft_tokens import SoftToken
from jaxdelegate.op_lowering.spec import Shape

TOKENS, LOGITS = ("tokens", "token_ids"), "logits"
ACTIVATIONS, PROJECTED = "activations", "projected_activations"
# Inputs that models in other parts compute from a token.
EMBEDDERS = {"embeddings": "embedder", "per_layer_embeddings": "per_layer_embedder"}
DRAFTER = "mtp_drafter"
_CACHE = re.compile(r"(kv_cache_[kv]|[kv]_cache)_")
_SHORTEST = 256  # tokens; shorter caches would save little
_STARTING_TOKENS, _SHARING = 512, 4
_MOST_PROMPTS, _MOST_STEPS = 8, 16
_MOST_ROWS, _MOST_TOKENS = 512, 2048  # of a step, and of a program


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
        adapters: the names of inputs that are factors of LoRA adapters.
    """

    key: str
    length: int
    inputs: Mapping[str, TensorInfo]
    tokens: str | None
    embeddings: tuple[str, ...]
    places: Places
    states: tuple[str, ...]
    has_logits: bool
    adapters: tuple[str, ...] = ()


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
        limit: of a prompt and its answer, at most that.
        vocabulary: the number of logits.
        states: the caches of one sequence, by name.
        axes: the dimension of each cache that holds its tokens; caches that are not among them have
            another number of entries.
        embedders: what computes such inputs, by name.
        attention: which tokens each one sees.
        drafter: None: the bundle has none, or not one that can be used.
        why_no_drafter: why; empty: it has one.
        hidden_size: elements of the hidden state of a token; 0: the model has none to return.
        updates_caches: whether `decode` writes the entries of its token, and keeps the others.
        cache_dtype: in which programs have float32 caches; None: in float32. In int8 each entry
            of a token and head has a scale, where the graph says which dimension has tokens.
        soft_size: elements of the embedding of a soft token; 0: prompts have no soft tokens.
        adapters: the factors of the LoRA adapter of one sequence, by name; empty: it has none.
    """

    prefill: tuple[Step, ...]
    decode: Step
    capacity: int
    limit: int
    vocabulary: int
    states: Mapping[str, TensorInfo]
    axes: Mapping[str, int]
    embedders: Mapping[str, Embedder]
    attention: Attention
    drafter: Drafter | None
    why_no_drafter: str
    hidden_size: int = 0
    updates_caches: bool = False
    cache_dtype: np.dtype | None = None
    soft_size: int = 0
    adapters: Mapping[str, TensorInfo] = dataclasses.field(default_factory=dict)

    def check(self, ids: Sequence[int], *, has_answer: bool = False) -> None:
        """Raise a GenerationError if these tokens are not a sequence for the model.

        The list is empty, exceeds the limit, leaves no place for an answer, or has an id outside of
        the vocabulary.
        """
        if not ids:
            raise GenerationError("expected at least one token, got none: the prompt is empty")
        if len(ids) + has_answer > self.limit:
            answer = f" before an answer (max_num_tokens is {self.limit})" if has_answer else ""
            raise GenerationError(
                f"expected at most {self.limit - has_answer} tokens{answer}, got {len(ids)}: "
                "shorten the text"
            )
        wrong = next((i for i in ids if not (0 <= i < self.vocabulary or _is_soft(i))), None)
        if wrong is not None:
            raise GenerationError(f"expected token ids below {self.vocabulary}, got {wrong}")
        if _is_soft(ids[-1]):
            raise GenerationError("expected a text after the last image or sound, got none")

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

    def dtype(self, name: str) -> np.dtype:
        """The dtype in which programs have one of `carried`."""
        own, dtype = self.carried[name].dtype, self.cache_dtype
        if dtype is None or not is_cache(name) or own != np.float32:
            return own
        return own if dtype == np.int8 and self.elements_axis(name) is None else dtype

    def elements_axis(self, name: str) -> int | None:
        """The dimension of a cache that holds the elements of an entry, if it has scales."""
        info, tokens = self.carried[name], self.axes.get(name)
        is_float = is_cache(name) and info.dtype == np.float32
        if self.cache_dtype != np.int8 or not is_float or tokens is None:
            return None
        last = len(info.shape) - 1
        return {last - 1: last, last: last - 1}.get(tokens)

    def arrays(self, name: str, length: int) -> list[tuple[Shape, np.dtype]]:
        """The arrays of one of `carried` at one of these lengths: one, or values and scales."""
        shape, axis = self.shape(name, length), self.elements_axis(name)
        values = shape, self.dtype(name)
        if axis is None:
            return [values]
        return [values, ((*shape[:axis], 1, *shape[axis + 1 :]), np.dtype(np.float32))]

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

    @functools.cached_property
    def recurrent(self) -> tuple[str, ...]:
        """The states that have no entry for each token: a convolution's last inputs, for example.

        They are after the last token that was processed, and cannot go back to an earlier one.
        """
        return tuple(name for name in self.states if not is_cache(name))

    @property
    def max_rewind(self) -> int | None:
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


def _is_soft(token: int) -> bool:
    return isinstance(token, SoftToken)


def is_cache(state: str) -> bool:
    """Whether a state has an entry for each token, at its position."""
    return _CACHE.match(state) is not None


def prefill_plan(
    count: int, start: int, lengths: Iterable[int], capacity: int, padding: int = 0
) -> list[int]:
    """The lengths of the prefill steps for `count` tokens from position `start` on.

    The shortest step that holds all tokens, unless they fill less than half of it and leave more
    than `padding` places; then the longest one that they fill, and the rest in the same way. A step
    writes a cache entry for each of its tokens, so it must end within the capacity; where none
    does, 1 stands for a decode step.
    """
    plan = list[int]()
    while count > 0:
        fitting = sorted(n for n in lengths if start + n <= capacity)
        holding = [n for n in fitting if n >= count]
        filled = [n for n in fitting if n < count]
        if holding and (holding[0] - count <= max(count, padding) or not filled):
            step = holding[0]
        else:
            step = filled[-1] if filled else 1
        plan.append(step)
        start, count = start + step, count - step
    return plan


def padding_of(platform: str, slots: int) -> int:
    """How many places of a prefill step may stay empty rather than that a step more runs.

    A GPU takes as long to start the kernels of a small model's step as to compute about 512 of its
    tokens: an estimate, 670 kernels in 1.4 ms and a token in 2.6 us for 600 million int8 weights,
    which was not measured. Up to 4 slots share a step of 128 tokens, and each has empty places.
    """
    return _STARTING_TOKENS // min(slots, _SHARING) if platform == "gpu" else 0


def prompts_at_once(platform: str, slots: int, length: int) -> int:
    """How many prompts are read at once, each by a prefill step of a length.

    More than one where starting kernels takes long, until their tokens are enough work. Products of
    more rows would not be one kernel, see `jaxdelegate.op_lowering.matmul`.
    """
    if platform != "gpu":
        return 1
    return min(slots, _MOST_PROMPTS, max(_MOST_ROWS // length, 1))


def steps_at_once(platform: str, prompts: int, length: int) -> int:
    """How many prefill steps of a length one program runs, one after the other, at most.

    A GPU runs them without the host. Requests that decode wait for them, so they are not too many.
    """
    if platform != "gpu":
        return 1
    return min(_MOST_STEPS, max(_MOST_TOKENS // (prompts * length), 1))
