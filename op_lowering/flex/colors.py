"""Colors of images (core/kernels/{colorspace_op,image/adjust_*_op}.cc)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_dtype,
    why_not_result,
)

_Op = Op[FlexOptions]


def _to_hsv(x: jax.Array) -> jax.Array:
    """[..., red, green, blue] to [..., hue, saturation, value], all from 0 to 1."""
    r, g, b = jnp.moveaxis(x, -1, 0)
    v = jnp.max(x, -1)
    span = v - jnp.min(x, -1)
    safe = jnp.where(span > 0, span, jnp.ones_like(span))
    sector = jnp.where(r == v, g - b, jnp.where(g == v, b - r + 2 * safe, r - g + 4 * safe))
    hue = jnp.where(span > 0, sector / (6 * safe), jnp.zeros_like(v))
    s = jnp.where(v > 0, span / jnp.where(v > 0, v, jnp.ones_like(v)), jnp.zeros_like(v))
    return jnp.stack([jnp.where(hue < 0, hue + 1, hue), s, v], -1)


def _to_rgb(x: jax.Array) -> jax.Array:
    h, s, v = jnp.moveaxis(x, -1, 0)
    r, g, b = (jnp.abs(6 * h - k) for k in (3, 2, 4))
    parts = (jnp.clip(part, 0, 1) for part in (r - 1, 2 - g, 2 - b))
    return jnp.stack([(1 - s + s * part) * v for part in parts], -1)


def _with_hue(x: jax.Array, delta: jax.Array) -> jax.Array:
    h, s, v = jnp.moveaxis(_to_hsv(x), -1, 0)
    return _to_rgb(jnp.stack([jnp.mod(h + delta, 1), s, v], -1))


def _with_saturation(x: jax.Array, scale: jax.Array) -> jax.Array:
    h, s, v = jnp.moveaxis(_to_hsv(x), -1, 0)
    return _to_rgb(jnp.stack([h, jnp.clip(s * scale, 0, 1), v], -1))


def _with_contrast(x: jax.Array, factor: jax.Array) -> jax.Array:
    mean = jnp.mean(x, (-3, -2), keepdims=True)
    return (x - mean) * factor + mean


def _rule(
    name: str,
    function: Callable[..., jax.Array],
    *,
    least_rank: int = 1,
    any_channels: bool = False,
) -> OpRule[FlexOptions]:
    n = 1 + name.startswith("Adjust")

    def why_not(op: _Op) -> str | None:
        x, numbers = op.inputs[0], op.inputs[1:n]
        fits = len(x.shape) >= least_rank and (any_channels or x.shape[-1:] == (3,))
        return first_reason(
            *(why_not_dtype(spec, np.float32) for spec in (x, *numbers)),
            why_not_result(op.outputs[0], x.dtype),
            None if fits else f"{x.name!r} {list(x.shape)} is not of colors",
            *(f"{s.name!r} is not one number" if s.shape else None for s in numbers),
        )

    def lower(_op: _Op) -> Function:
        return lambda *arrays: (function(*map(jnp.asarray, arrays)),)

    return OpRule(f"{FLEX}{name}", FlexOptions, 1, why_not, lower, arity=n)


RULES = table(
    _rule("AdjustContrastv2", _with_contrast, least_rank=3, any_channels=True),
    _rule("AdjustHue", _with_hue, least_rank=3),
    _rule("AdjustSaturation", _with_saturation, least_rank=3),
    _rule("HSVToRGB", _to_rgb),
    _rule("RGBToHSV", _to_hsv),
)
