"""Attention of a decode step with its caches, which only rewrites create: one kernel on a GPU."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdelegate.op_lowering.common.quantized_cache import QuantizedCache
from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.fused import decode_attention_triton
from jaxdelegate.op_lowering.fused.options import DecodeAttentionOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    Op,
    first_reason,
    rule,
    table,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import TensorSpec

_NAMES = (
    *("q", "k", "v", "keys", "values", "place", "mask"),
    *("q_scale", "k_scale", "v_scale", "cos", "sin"),
)


def _why_not(op: Op[DecodeAttentionOptions]) -> str | None:
    specs = [spec for i, spec in enumerate(op.inputs) if spec is not None and _NAMES[i] != "place"]
    _, queries, size, _ = _sizes(op)
    has_kernel = op.context.platform == "gpu" and op.context.kernels.triton
    fits = (
        queries <= decode_attention_triton.MOST_QUERIES
        and size <= decode_attention_triton.MOST_SIZE
    )
    return first_reason(
        None if has_kernel else "only our kernel for GPUs gains by it",
        *(why_not_dtype(s, decode_attention_triton.DTYPES) for s in (*specs, *op.outputs)),
        why_not_dtype(op.inputs[5], np.int32),
        None if fits else f"the kernel has no {queries} queries of {size} elements",
    )


def _sizes(op: Op[DecodeAttentionOptions]) -> tuple[int, int, int, int]:
    """Heads of keys, queries of each, elements of a head, places."""
    *heads, queries, length = op.options.logits
    return math.prod(heads), queries, op.outputs[0].shape[-1], length


def _form(op: Op[DecodeAttentionOptions]) -> decode_attention_triton.Form:
    o, storage = op.options, op.context.precision.storage
    return decode_attention_triton.Form(
        *_sizes(op),
        scale=o.scale,
        cap=o.cap,
        keys_last=o.keys_last,
        values_last=o.values_last,
        epsilons=o.epsilons,
        rotates=op.inputs[10] is not None,
        hidden=decode_attention_triton.hidden_below(_bound(op)),
        dtype=storage if storage in HALVES else op.outputs[0].dtype,
    )


def _bound(op: Op[DecodeAttentionOptions]) -> float | None:
    """The largest size of logits of normalized queries and keys; None: it is not known."""
    o, scales = op.options, op.inputs[7:9]
    if o.cap:
        return abs(o.cap)
    if not all(o.epsilons[:2]) or any(s is not None and s.const is None for s in scales):
        return None
    largest = math.prod(_largest(scale) for scale in scales)
    turned = 2 if op.inputs[10] is not None else 1  # by a sine and a cosine, each at most 1
    return abs(o.scale) * largest * op.outputs[0].shape[-1] * turned


def _largest(scale: TensorSpec | None) -> float:
    if scale is None or scale.const is None:
        return 1.0
    return float(np.abs(np.asarray(scale.const, np.float64)).max(initial=0.0))


def _lower(op: Op[DecodeAttentionOptions]) -> Function:
    form = _form(op)
    sizes = {
        "keys": _cache_shape(form, is_last=form.keys_last),
        "values": _cache_shape(form, is_last=form.values_last),
    }
    scales = dict.fromkeys(decode_attention_triton.SCALES.values(), (form.heads, form.length))
    ends = {"place": (), **scales}

    def step(*arrays: jax.Array | None) -> tuple[jax.Array, ...]:
        named = dict(zip(_NAMES, arrays, strict=True))
        caches = {name: named[name] for name in sizes}
        named |= _in_two(caches)
        shared = {n: x if x is None else x.reshape(-1) for n, x in named.items() if "_" in n}
        own = {
            name: x if x is None else x.reshape(1, *sizes.get(name, ends.get(name, (-1,))))
            for name, x in named.items()
            if name not in shared
        }
        y, *new = decode_attention_triton.decode_attention(form, {**own, **shared})
        leaves, tree = jax.tree.flatten(tuple(caches.values()))
        after = (each.reshape(leaf.shape) for each, leaf in zip(new, leaves, strict=True))
        return y.reshape(op.outputs[0].shape), *jax.tree.unflatten(tree, after)

    return Lowered(step, {}, takes_reduced=True, carries=True)


def _in_two(caches: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of quantized caches, by the kernel's names."""
    found: dict[str, Any] = {}
    for name, cache in caches.items():
        if isinstance(cache, QuantizedCache):
            found |= {name: cache.values, decode_attention_triton.SCALES[name]: cache.scales}
    return found


def _cache_shape(form: decode_attention_triton.Form, *, is_last: bool) -> Sequence[int]:
    matrix = (form.size, form.length) if is_last else (form.length, form.size)
    return (form.heads, *matrix)


DECODE_ATTENTION = rule("fused_decode_attention", 1, _why_not, _lower, arity=7, results=3)

FUSED = table(DECODE_ATTENTION)
