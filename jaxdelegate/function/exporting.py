"""Exports a model as StableHLO for one platform, which need not be available (`jax.export`)."""

from typing import Any

import jax
from jax import export

from jaxdelegate.errors import OptionError

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def exported(
    model: Any, platform: str, signature: str | None, io: str, has_state: bool
) -> export.Exported:
    """See `CallableModel.export`."""
    if platform not in _PLATFORMS:
        raise OptionError(f"platforms: expected some of {', '.join(_PLATFORMS)}, got {platform!r}")
    apply, params = model.function(signature, io, platform)

    def run(params: Any, *inputs: Any, state: Any = None) -> Any:
        return apply(params, *inputs, state=state)

    def shape_of(array: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype)  # type: ignore[no-untyped-call]

    given = {"state": model.initial_state(signature, io)} if has_state else {}
    leaves, states = jax.tree.map(shape_of, (params, given))
    with jax.enable_x64(True):
        return export.export(jax.jit(run), platforms=[platform])(leaves, *apply.inputs(), **states)
