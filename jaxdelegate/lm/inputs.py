"""The inputs of a language model's signatures, for its use as a JAX function."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.function.records import Signature, TensorInfo
from jaxdelegate.lm.graph import TOKENS
from jaxdelegate.lm.places import Places, first


def empty_caches(signature: Signature) -> dict[str, np.ndarray]:
    """The caches of a new sequence, by name: zeros.

    Args:
        signature: `model.signatures["decode"]`, or that of another step.
    """
    states = {n: info for n, info in signature.inputs.items() if n in signature.outputs}
    return {name: np.zeros(info.shape, info.dtype) for name, info in states.items()}


def step_inputs(
    signature: Signature,
    tokens: Any,
    start: Any = 0,
    caches: Mapping[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """The inputs of a step by name, for `apply(params, inputs)`: tokens, places, mask and caches.

    Each token sees itself and those before it. Arguments may be traced by JAX.

    Args:
        signature: of the step, for example `model.signatures["prefill_128"]`.
        tokens: [n], at most as many as the step processes. Zeros with position 0 follow them, as in
            LiteRT-LM: the next step writes its cache entries over theirs.
        start: the place of the first token.
        caches: as another step returned them, among its outputs; None: those of a new sequence.
        **others: further inputs by name, for example `embeddings` for all places of the step, or a
            mask of the last tokens, `local_mask`.

    Raises:
        ValueError: the signature is not that of a step, or lacks one of `others`; there are more
            tokens than the step processes, or the caches end before them.
    """
    import jax.numpy as jnp  # noqa: PLC0415 (jaxdelegate.lm does not import jax)

    from jaxdelegate.lm.masks import place_inputs  # noqa: PLC0415 (as above)

    inputs, ids = signature.inputs, jnp.asarray(tokens).reshape(-1)
    places, tokens_name = Places.among(inputs), first(TOKENS, inputs)
    unknown = [name for name in others if name not in inputs]
    if places.positions is None or unknown:
        raise ValueError(
            f"step_inputs: expected the signature of a step with the input "
            f"{'input_pos' if places.positions is None else unknown[0]!r}, got one with "
            f"{', '.join(inputs)}"
        )
    if places.local_mask is not None and places.local_mask not in others:
        raise ValueError(
            f"step_inputs: expected the input {places.local_mask}=..., whose window the signature "
            "does not say"
        )
    length = int(np.prod(inputs[places.positions].shape))
    if len(ids) > length:
        raise ValueError(f"step_inputs: the step takes {length} tokens, got {len(ids)}")
    if places.mask is not None:
        _check_end(start, length, inputs[places.mask].shape[-1])
    values = {
        **place_inputs(dataclasses.replace(places, local_mask=None), inputs, start, len(ids)),
        **(empty_caches(signature) if caches is None else caches),
        **others,
    }
    if tokens_name is not None:
        values[tokens_name] = jnp.pad(ids, (0, length - len(ids)))
    return {name: _fitting(values[name], inputs[name]) for name in inputs if name in values}


def _check_end(start: Any, length: int, capacity: int) -> None:
    """Check a start that is a number: a step that ends beyond its caches overwrites others."""
    if isinstance(start, int | np.integer) and not 0 <= start <= capacity - length:
        raise ValueError(
            f"step_inputs: a step of {length} tokens must start from 0 to {capacity - length}, so "
            f"that it ends within caches of {capacity}, got {start}"
        )


def _fitting(value: Any, info: TensorInfo) -> Any:
    return value.astype(info.dtype).reshape(info.shape)
