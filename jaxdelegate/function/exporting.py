"""Exports a model for one platform, and lets `jax.export` store functions that take models."""

import json
from typing import Any, NoReturn, TypeVar

import jax
from jax import export

from jaxdelegate.errors import OptionError
from jaxdelegate.function.functions import Functions

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
T = TypeVar("T")


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

    initial = {"state": model.initial_state(signature, io)} if has_state else {}
    leaves, states = jax.tree.map(shape_of, (params, initial))
    with jax.enable_x64(True):
        return export.export(jax.jit(run), platforms=[platform])(leaves, *apply.inputs(), **states)


class OfStoredExport:
    """Stands for a model's functions in a stored export: equal to them, but without the file."""

    def __init__(self, identity: tuple[str, int, str]) -> None:
        self.identity = identity

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Functions | OfStoredExport):
            return NotImplemented
        return self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity[1])

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what needs the file."""
        raise AttributeError(
            f"{name}: this model is a result of a stored export, so it has weights but no file: "
            "use jaxdelegate.load(path).with_params(model.params)"
        )


def storable(kind: type[T]) -> type[T]:
    """Let `Exported.serialize` accept functions of models: it stores which file and view they are.

    Weights are arguments of such a function, so that the stored export does not contain the file.
    """
    return export.register_pytree_node_serialization(
        kind,
        serialized_name="jaxdelegate.Model",
        serialize_auxdata=lambda functions: json.dumps(functions.identity).encode(),
        deserialize_auxdata=lambda data: OfStoredExport(tuple(json.loads(data))),
    )
