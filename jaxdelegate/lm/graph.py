"""Which signatures of a model read a prompt and generate tokens, and what their inputs mean.

Source: the exports of litert-torch and ai-edge-torch, as LiteRT-LM's executors read them
(runtime/executor/litert_compiled_model_executor_utils.cc): tokens, input_pos, mask, and caches that
are inputs and outputs of the same name.
"""

import dataclasses
import itertools
import re
import types
from collections.abc import Iterable, Mapping
from typing import NoReturn

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.function.records import Signature, TensorInfo
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.text import printable

TOKENS, POSITIONS, MASKS, _LOGITS = "tokens", "input_pos", ("mask", "attn_mask"), "logits"
# LiteRT-LM's negative number of a mask (litert_compiled_model_executor_utils.cc): sums with logits
# stay finite.
MASKED = {
    np.dtype(np.float32): -0.7 * float(np.finfo(np.float32).max),
    np.dtype(np.float16): -45824.0,
}
# Inputs that models in other parts compute from a token.
EMBEDDERS = {"embeddings": "embedder", "per_layer_embeddings": "per_layer_embedder"}
_KEY = re.compile(r"(prefill|decode)(?:_(\d+))?(?:_cache_(\d+))?")
_CACHE = re.compile(r"(kv_cache_[kv]|[kv]_cache)_")  # an entry for each token, at its position
_SHORTEST = 256  # tokens; shorter caches would save little
_MASK_TYPES = (*MASKED, np.dtype(np.bool_))


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
        embeddings: the shapes of inputs that embedders compute, by name; none: it takes tokens.
        mask: the name of the attention mask's input; None: it has none.
        states: the names of caches, which are inputs and outputs.
        has_logits: whether it returns logits; if not, it fills caches only.
    """

    key: str
    length: int
    embeddings: Mapping[str, Shape]
    mask: str | None
    states: tuple[str, ...]
    has_logits: bool


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
        tokens: the type of token ids; None: embedders take them.
        positions: the type of positions.
        masks: the type of the attention mask: 0 and a negative number, or True and False.
    """

    prefill: tuple[Step, ...]
    decode: Step
    capacity: int
    vocabulary: int
    states: Mapping[str, TensorInfo]
    axes: Mapping[str, int]
    embedders: Mapping[str, Embedder]
    tokens: np.dtype | None
    positions: np.dtype
    masks: np.dtype

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

    def shape(self, state: str, length: int) -> Shape:
        """A cache's shape at one of these lengths."""
        shape = self.states[state].shape
        if state not in self.axes:
            return shape
        axis = self.axes[state]
        return (*shape[:axis], length, *shape[axis + 1 :])

    def step(self, key: str) -> Step:
        """The step of a signature."""
        return next(step for step in (*self.prefill, self.decode) if step.key == key)

    def keys(self, step: str) -> dict[str, str]:
        """The signatures that a step runs, by part: its own, as "", and those of embedders."""
        return {"": step} | {e.part: e.key for e in self.embedders.values()}

    @property
    def recurrent(self) -> tuple[str, ...]:
        """The states that have no entry for each token: a convolution's last inputs, for example.

        They are after the last token that was processed, and cannot go back to an earlier one.
        """
        return tuple(name for name in self.states if not _CACHE.match(name))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of tokens that the prefill signatures read at once, ascending."""
        return tuple(step.length for step in self.prefill)


def language_graph(
    signatures: Mapping[str, Signature],
    source: str,
    most_tokens: int | None = None,
    others: Mapping[str, Mapping[str, Signature]] = types.MappingProxyType({}),
) -> LanguageGraph:
    """Find the steps among a model's signatures.

    Args:
        signatures: of the model.
        source: its name, for messages.
        most_tokens: how many tokens are wanted, where there are signatures for several lengths of
            caches; None: the longest.
        others: the signatures of the bundle's other models, by part.

    Raises:
        ModelError: a signature is missing, or has an input that the engine cannot provide.
    """
    reader = _Reader(signatures, source)
    keys = reader.keys(most_tokens)
    steps = {key: reader.step(key) for key in keys}
    decode = [step for key, step in steps.items() if key.startswith("decode")]
    prefill = sorted((s for s in steps.values() if s not in decode), key=lambda s: s.length)
    if len(decode) != 1 or not decode[0].has_logits:
        there = ", ".join(signatures) or "none"
        reader.fail(f"expected a signature 'decode' with the output 'logits', got {there}")
    (step,) = decode
    inputs = signatures[step.key].inputs
    masks = inputs[step.mask].dtype if step.mask is not None else np.dtype(np.float32)
    if masks not in _MASK_TYPES:
        reader.fail(f"expected a mask of float32, float16 or bool, got {masks}")
    capacity = reader.capacity(step)
    return LanguageGraph(
        prefill=tuple(prefill),
        decode=step,
        capacity=capacity,
        vocabulary=signatures[step.key].outputs[_LOGITS].shape[-1],
        states={name: inputs[name] for name in step.states},
        axes=_axes(inputs, step.states, capacity),
        embedders={name: reader.embedder(name, others) for name in step.embeddings},
        tokens=None if step.embeddings else inputs[TOKENS].dtype,
        positions=inputs[POSITIONS].dtype,
        masks=masks,
    )


def _axes(inputs: Mapping[str, TensorInfo], states: Iterable[str], capacity: int) -> dict[str, int]:
    """The only dimension of each cache that is as long as the capacity."""
    shapes = {name: inputs[name].shape for name in states if _CACHE.match(name)}
    counts = {name: shape.count(capacity) for name, shape in shapes.items()}
    if any(count > 1 for count in counts.values()):
        return {}
    return {name: shapes[name].index(capacity) for name, count in counts.items() if count}


def embedder_of(part: str, models: Mapping[str, Mapping[str, Signature]]) -> Embedder | None:
    """A part's signature of one token; None: it has none. `models`: signatures by part."""
    for key, signature in models.get(part, {}).items():
        ends = len(signature.inputs), len(signature.outputs)
        token, info = next(iter(signature.inputs.items()), ("", None))
        if ends == (1, 1) and info is not None and _is_one_token(info):
            (result,) = signature.outputs
            return Embedder(part, key, token, info.shape, info.dtype, result)
    return None


def _is_one_token(info: TensorInfo) -> bool:
    return info.dtype.kind in "iu" and int(np.prod(info.shape)) == 1


class _Reader:
    def __init__(self, signatures: Mapping[str, Signature], source: str) -> None:
        self._signatures, self._source = signatures, source

    def keys(self, most_tokens: int | None) -> list[str]:
        """Those of one length of caches: the shortest that is long enough, or the longest."""
        found = {key: m for key in self._signatures if (m := _KEY.fullmatch(key)) is not None}
        lengths = sorted({int(m[3] or 0) for m in found.values()})
        fitting = [n for n in lengths if most_tokens is not None and n >= most_tokens]
        chosen = min(fitting) if fitting else max(lengths, default=0)
        return [key for key, m in found.items() if int(m[3] or 0) == chosen]

    def step(self, key: str) -> Step:
        inputs, outputs = self._signatures[key].inputs, self._signatures[key].outputs
        embeddings = {name: inputs[name].shape for name in EMBEDDERS if name in inputs}
        wanted = {POSITIONS} if "embeddings" in embeddings else {TOKENS, POSITIONS}
        if missing := wanted - set(inputs):
            self.fail(
                f"signature {key!r}: expected the inputs 'tokens' (or 'embeddings') and "
                f"'input_pos', got no {', '.join(sorted(missing))}"
            )
        states = tuple(name for name in inputs if name in outputs)
        mask = next((name for name in MASKS if name in inputs), None)
        known = {*wanted, *embeddings, mask, *states}
        if others := [name for name in inputs if name not in known]:
            self.fail(f"signature {key!r} has inputs that are not supported: {', '.join(others)}")
        length = int(np.prod(inputs[POSITIONS].shape))
        return Step(key, length, embeddings, mask, states, _LOGITS in outputs)

    def embedder(self, name: str, others: Mapping[str, Mapping[str, Signature]]) -> Embedder:
        """The signature of another part that computes an input from one token."""
        part = EMBEDDERS[name]
        return embedder_of(part, others) or self.fail(
            f"expected a model {part!r} in the bundle, with a signature of one token, which "
            f"computes the input {name!r}, got {', '.join(others) or 'no other models'}"
        )

    def capacity(self, step: Step) -> int:
        """The length of the mask; without one, the longest dimension of a cache."""
        inputs = self._signatures[step.key].inputs
        if step.mask is not None:
            return inputs[step.mask].shape[-1]
        shapes = [inputs[name].shape for name in step.states if _CACHE.match(name)]
        if not shapes:
            self.fail(
                "expected a mask or caches named kv_cache_..., whose length is the most tokens"
            )
        return max(map(max, shapes))

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
