"""Finds the steps among a model's signatures, and those of the bundle's other models.

Source: runtime/executor of LiteRT-LM: llm_litert_compiled_model_executor.cc, as its CPU executor
reads signatures, and llm_litert_mtp_drafter.cc.
"""

import dataclasses
import re
import types
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

import numpy as np

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.function.records import Signature, TensorInfo
from jaxdelegate.lm.adapters import is_adapter_input, rank_of
from jaxdelegate.lm.graph import (
    ACTIVATIONS,
    DRAFTER,
    EMBEDDERS,
    LOGITS,
    PROJECTED,
    TOKENS,
    Drafter,
    Embedder,
    LanguageGraph,
    Step,
    is_cache,
)
from jaxdelegate.lm.places import MASK_TYPES, POSITIONS, Attention, Places, first, why_unknown
from jaxdelegate.text import printable

_KEY = re.compile(r"(prefill|decode)(?:_(\d+))?(?:_cache_(\d+))?(?:_lora_r(\d+))?")
_VERIFY = "verify"


def language_graph(
    signatures: Mapping[str, Signature],
    source: str,
    most_tokens: int | None = None,
    others: Mapping[str, Mapping[str, Signature]] = types.MappingProxyType({}),
    attention: Attention = Attention(),  # noqa: B008 (immutable)
    lora_rank: int = 0,
) -> LanguageGraph:
    """Find the steps among a model's signatures.

    Args:
        signatures: of the model.
        source: its name, for messages.
        most_tokens: the limit of a sequence, by which signatures for caches of several lengths are
            chosen; None: those of the longest caches, and what they hold.
        others: the signatures of the bundle's other models, by part.
        attention: what the bundle declares.
        lora_rank: of the LoRA adapters that sequences may have; 0: none, or those of all
            signatures.

    Raises:
        ModelError: a signature is missing, or has an input that the engine cannot provide.
        OptionError: the model takes no adapters of this rank.
    """
    reader = _Reader(signatures, source, others)
    keys = reader.keys(most_tokens, lora_rank)
    steps = {key: reader.step(key) for key in keys}
    decode = [step for key, step in steps.items() if key.startswith("decode")]
    prefill = sorted((s for s in steps.values() if s not in decode), key=lambda s: s.length)
    if len(decode) != 1 or not decode[0].has_logits:
        there = ", ".join(signatures) or "none"
        reader.fail(f"expected a signature 'decode' with the output 'logits', got {there}")
    (step,) = decode
    capacity = reader.capacity(step)
    reader.check_window(step, capacity, attention.window)
    reader.check_adapters(step, prefill)
    drafter, why = reader.drafter_or_why(step)
    return LanguageGraph(
        prefill=tuple(prefill),
        decode=step,
        capacity=capacity,
        limit=min(most_tokens or capacity, capacity),
        vocabulary=signatures[step.key].outputs[LOGITS].shape[-1],
        states={name: step.inputs[name] for name in step.states},
        axes=_axes(step.inputs, step.states, capacity),
        embedders={name: reader.embedder(name) for name in step.embeddings},
        attention=attention,
        drafter=drafter,
        why_no_drafter=why,
        adapters={name: step.inputs[name] for name in step.adapters},
    )


def _axes(inputs: Mapping[str, TensorInfo], states: Iterable[str], capacity: int) -> dict[str, int]:
    """The only dimension of each cache that is as long as the capacity."""
    shapes = {name: inputs[name].shape for name in states if is_cache(name)}
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
    def __init__(
        self,
        signatures: Mapping[str, Signature],
        source: str,
        others: Mapping[str, Mapping[str, Signature]],
    ) -> None:
        self._signatures, self._source, self._others = signatures, source, others

    def keys(self, most_tokens: int | None, lora_rank: int) -> list[str]:
        """The keys for one length of caches: the shortest that is long enough, or the longest."""
        matches = {key: m for key in self._signatures if (m := _KEY.fullmatch(key)) is not None}
        suffix = self._suffix(lora_rank, {int(m[4]) for m in matches.values() if m[4]})
        found = {key: m for key, m in matches.items() if int(m[4] or 0) == suffix}
        lengths = sorted({int(m[3] or 0) for m in found.values()})
        fitting = [n for n in lengths if most_tokens is not None and n >= most_tokens]
        chosen = min(fitting) if fitting else max(lengths, default=0)
        return [key for key, m in found.items() if int(m[3] or 0) == chosen]

    def _suffix(self, lora_rank: int, ranks: Collection[int]) -> int:
        """The rank in the names of the signatures; 0: those without one."""
        if lora_rank in (0, *ranks):
            return lora_rank
        own = {n: i for s in self._signatures.values() for n, i in s.inputs.items()}
        own_rank = 0 if ranks else rank_of({n: i for n, i in own.items() if is_adapter_input(n)})
        if lora_rank != own_rank:
            known = ", ".join(map(str, sorted(ranks))) or own_rank
            raise OptionError(
                f"lora_rank: {printable(self._source)} takes "
                + (f"LoRA adapters of the rank {known}" if known else "no LoRA adapters")
                + f", got {lora_rank}"
            )
        return 0

    def step(self, key: str) -> Step:
        inputs, outputs = self._signatures[key].inputs, self._signatures[key].outputs
        embeddings = tuple(name for name in EMBEDDERS if name in inputs)
        tokens = None if "embeddings" in embeddings else first(TOKENS, inputs)
        places, states = Places.among(inputs), tuple(name for name in inputs if name in outputs)
        adapters = tuple(name for name in inputs if is_adapter_input(name))
        self._check(key, inputs, places, {tokens, *embeddings, *states, *adapters})
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
            adapters=adapters,
        )

    def _check(
        self, key: str, inputs: Mapping[str, TensorInfo], places: Places, known: set[str | None]
    ) -> None:
        """Whether all inputs are known and have numbers, and masks have a known type."""
        for given, info in inputs.items():
            if info.dtype.hasobject or info.dtype.type is np.void:  # strings, resources, variants
                self.fail(f"signature {key!r}: expected numbers in {given!r}, got {info.dtype}")
        if others := [name for name in inputs if name not in known | places.names]:
            self.fail(f"signature {key!r} has inputs that are not supported: {why_unknown(others)}")
        for name in (places.mask, places.local_mask):
            if name is not None and inputs[name].dtype not in MASK_TYPES:
                dtype = inputs[name].dtype
                self.fail(f"expected a mask of float32, float16 or bool, got {dtype}")

    def embedder(self, name: str) -> Embedder:
        """The signature of another part that computes an input from one token."""
        part = EMBEDDERS[name]
        return embedder_of(part, self._others) or self.fail(
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
        outputs = self._signatures[_VERIFY].outputs
        self._require(key, "inputs", inputs, (ACTIVATIONS, places.positions or POSITIONS[0]))
        self._require(key, "outputs", signature.outputs, (LOGITS, PROJECTED))
        self._require(_VERIFY, "outputs", outputs, (LOGITS, ACTIVATIONS))
        self._check_caches(decode, verify)
        for name in states:
            self._check_cache(key, name, inputs, decode)
        info = outputs[ACTIVATIONS]
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

    def _require(self, key: str, ends: str, given: Collection[str], names: Collection[str]) -> None:
        if not {*names} <= {*given}:
            wanted, got = (", ".join(these) for these in (names, given))
            self.fail(f"signature {key!r}: expected the {ends} {wanted}, got {got}")

    def _check_caches(self, decode: Step, verify: Step) -> None:
        """Whether rejected tokens can be taken back from the caches."""
        if recurrent := [name for name in decode.states if not is_cache(name)]:
            self.fail(f"a drafter cannot take tokens back from the states {', '.join(recurrent)}")
        if verify.adapters != decode.adapters:
            self.fail(f"signature {verify.key!r} takes no LoRA adapters, so a drafter has none")
        for name in decode.states:
            self._check_cache(verify.key, name, verify.inputs, decode)
        local, capacity = verify.places.local_mask, self.capacity(decode)
        width = capacity if local is None else verify.inputs[local].shape[-1]
        own = decode.places.local_mask
        if own is not None and width == decode.inputs[own].shape[-1] < capacity:
            self.fail(
                f"signature {verify.key!r} writes {verify.length} entries at once into caches of "
                f"{width}: they may not fit at the end, so a drafter cannot be used"
            )

    def _check_cache(
        self, key: str, name: str, inputs: Mapping[str, TensorInfo], decode: Step
    ) -> None:
        wanted = decode.inputs[name]
        if name not in inputs or inputs[name].shape != wanted.shape:
            got = inputs[name].shape if name in inputs else "none"
            self.fail(
                f"signature {key!r}: expected the cache {name!r} of the shape {wanted.shape}, got "
                f"{got}"
            )

    def capacity(self, step: Step) -> int:
        """The length of the mask; without one, the longest dimension of a cache."""
        if step.places.mask is not None:
            return step.inputs[step.places.mask].shape[-1]
        shapes = [step.inputs[name].shape for name in step.states if is_cache(name)]
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

    def check_adapters(self, decode: Step, others: Iterable[Step]) -> None:
        """Whether all steps take the factors that the decode step takes."""
        for step in others:
            for name in step.adapters:
                got, wanted = step.inputs[name], decode.inputs.get(name)
                if wanted is None or (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
                    self.fail(
                        f"signature {step.key!r} takes {got}: expected {decode.key!r} to take the "
                        f"same, got {wanted or 'no such input'}"
                    )

    def fail(self, problem: str) -> NoReturn:
        raise ModelError(f"{printable(self._source)}: {printable(problem)}")
