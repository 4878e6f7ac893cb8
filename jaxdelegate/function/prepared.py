"""Functions for inference: their weights are laid out as a device's programs read them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp

from jaxdelegate.device_weights import ModelWeights
from jaxdelegate.errors import GradientError, TensorError
from jaxdelegate.function.arguments import check_alive, check_names
from jaxdelegate.function.compilers import Compilers
from jaxdelegate.lowering.computation import LoweredPartition, Weight
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.plan.whole import Shapes, WholePlans
from jaxdelegate.simple_delegate import DelegateParams
from jaxdelegate.xla.aot import resident_array, split_weights

Params = dict[str, Any]
_SOURCE = "model.function(weights='prepared') returns what this apply takes"
V = TypeVar("V")


@dataclasses.dataclass(frozen=True)
class _Lowered:
    partition: LoweredPartition
    arrays: Mapping[Weight, jax.Array]  # on the device
    constants: Mapping[Weight, Any]  # small ones, which programs contain

    @functools.cached_property
    def named(self) -> Params:
        """The arrays by name, after their tensors; equal arrays have one name."""
        found: dict[int, str] = {}
        taken: dict[str, int] = {}
        for weight, array in self.arrays.items():
            if id(array) in found:
                continue
            name = self.partition.specs[weight.tensor].name or f"tensor_{weight.tensor}"
            taken[name] = taken.get(name, 0) + 1
            found[id(array)] = name if taken[name] == 1 else f"{name}#{taken[name]}"
        by_id = {id(array): array for array in self.arrays.values()}
        return {name: by_id[i] for i, name in found.items()}


class PreparedFunction:
    """A subgraph as a delegate lowers it for a device, once for each set of input shapes."""

    def __init__(
        self,
        inputs: tuple[int, ...],
        declared: Shapes,
        plans: WholePlans,
        compilers: Compilers,
        most: int,
    ) -> None:
        """`declared` are the shapes of the file, `most` how many others are remembered."""
        self._inputs, self._declared, self._plans = inputs, declared, plans
        self._compilers = compilers
        self._first: dict[str | None, _Lowered] = {}
        self._others: LruCache[Any, _Lowered] = LruCache(most)

    @property
    def computes(self) -> bool:
        """Whether there is an operator to run: all outputs may be inputs or constants."""
        return bool(self._plans.plan(self._declared).nodes)

    def declare(self, shapes: Shapes) -> None:
        """Lower for these shapes first, instead of the file's, which callers may never use."""
        if not self._first:
            self._declared = shapes

    def leaves(self, platform: str | None) -> Params:
        """The weights for the declared shapes, by name; a donated one is created again."""
        first = self._first.get(platform)
        if first is None or any(array.is_deleted() for array in first.arrays.values()):
            first = self._first[platform] = self._lowered(platform, self._declared)
        return dict(first.named)

    def fitting(self, params: Any, platform: str | None) -> Params:
        """Select the weights from those that a caller gives."""
        wanted = self.leaves(platform)
        check_names("params", params, ())
        for name, leaf in wanted.items():
            if name not in params:
                raise TensorError(f"apply: params has no {name!r}: {_SOURCE}")
            check_alive("apply: params", name, params[name])
            given = jnp.asarray(params[name])
            if (given.shape, given.dtype) != (leaf.shape, leaf.dtype):
                raise TensorError(
                    f"apply: params[{name!r}]: expected {leaf.dtype} {list(leaf.shape)}, got "
                    f"{given.dtype} {list(given.shape)}: {_SOURCE}"
                )
        return {name: params[name] for name in wanted}

    def lowered(
        self, platform: str | None, shapes: Shapes, params: Params
    ) -> tuple[LoweredPartition, dict[Weight, Any]]:
        """The lowering for these shapes, with its weights; what `params` lacks is constant."""
        first = self._first[platform]
        own = first if shapes == self._declared else self._other(platform, shapes)
        given = {id(array): params[name] for name, array in first.named.items()}
        arrays = {weight: given.get(id(array), array) for weight, array in own.arrays.items()}
        return own.partition, {**arrays, **own.constants}

    def _other(self, platform: str | None, shapes: Shapes) -> _Lowered:
        return self._others.get((platform, shapes), lambda: self._lowered(platform, shapes))

    def _lowered(self, platform: str | None, shapes: Shapes) -> _Lowered:
        compiler, shared = self._compilers.preparing(platform)
        weights = ModelWeights(shared.runtime, shared)
        on_cpu = compiler.platform == "cpu"
        plan = self._plans.all_taken(shapes, compiler.why_not, on_cpu=on_cpu)
        node = DelegateParams(plan.nodes, self._inputs, plan.outputs)
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            partition = compiler.compilation.lowered(node, plan.specs, plan.outputs)
            arguments, constants = split_weights(partition, compiler.platform)
            arrays = {w: resident_array(weights, w, partition) for w in arguments}
        return _Lowered(partition, arrays, constants)


def without_derivatives(run: Callable[..., V], *arrays: Any) -> V:
    """The results of a function; differentiating them raises a GradientError."""
    call = jax.custom_jvp(run)
    call.defjvp(_refuse)
    return call(*arrays)


def _refuse(_primals: Any, _tangents: Any) -> NoReturn:
    raise GradientError(
        "weights='prepared' is for inference: its weights are laid out for a device, and its "
        "kernels have no derivatives; model.function() without it has gradients"
    )
