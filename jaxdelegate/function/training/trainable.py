"""Quantization-aware training: weights on their grids, and scales that are parameters."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.function.leaves import Leaves
from jaxdelegate.function.records import Place, Scale, computed_names, unique_name
from jaxdelegate.function.training.weight_grids import WeightGrid
from jaxdelegate.lowering import fake_quantization, learned_scales
from jaxdelegate.model.records import Subgraph, Tensor
from jaxdelegate.passes.shared_scales import NEAR, SharedScales
from jaxdelegate.quant import affine, jax_affine
from jaxdelegate.quant.params import Quantization

SUFFIX = "/scale"


class Trainable:
    """The grids of a model's weights, and the scales that can be trained."""

    def __init__(self, subgraphs: Sequence[Subgraph]) -> None:
        self._subgraphs = subgraphs
        self._grids: dict[Place, WeightGrid | None] = {}

    @functools.cached_property
    def _leaves(self) -> Leaves:
        return Leaves(self._subgraphs, as_floats=True)

    # ---- scales

    @functools.cached_property
    def _shared(self) -> SharedScales:
        return SharedScales(self._subgraphs, self._leaves.shared())

    @functools.cached_property
    def scales(self) -> dict[str, Scale]:
        """All scales that can be trained, by name, in execution order."""
        named = {place: name for name, place in reversed(self._names())}
        scales: dict[str, Scale] = {}
        order = {place: n for n, place in enumerate(dict.fromkeys(p for _, p in self._names()))}
        groups = (tuple(sorted(g, key=order.__getitem__)) for g in self._trainable())
        for places in sorted(groups, key=lambda g: order[g[0]]):
            name = unique_name(named[places[0]], places[0], scales, SUFFIX)
            scales[name] = Scale(name, self._quantization(places[0]).scale, places)
        return scales

    def _trainable(self) -> Iterator[tuple[Place, ...]]:
        """The groups whose scale can change, together with all biases that follow from it."""
        kept = {place for factors in self._kept_factors() for place in factors}
        for group in self._shared.groups:
            is_free = group.fixed_by is None and not group.is_unequal
            is_free &= not any(map(self._is_computed_by_channel, group.tensors))
            if is_free and kept.isdisjoint(group.tensors):
                yield group.tensors

    def _is_computed_by_channel(self, place: Place) -> bool:
        tensor = self._shared.tensor(place)
        q = tensor.quantization
        return tensor.stored is None and q is not None and q.is_per_channel

    def _kept_factors(self) -> Iterator[tuple[Place, Place]]:
        """Data and weights whose bias is computed, or has other uses or no scale."""
        for bias in self._shared.biases:
            leaf = self._first(bias.place)
            factors = (bias.data, bias.weights)
            tensor = self._shared.tensor(bias.place)
            if self._biases[leaf] != factors or tensor.stored is None or not _has_scale(tensor):
                yield from (factors, self._biases[leaf])

    @functools.cached_property
    def _biases(self) -> dict[Place, tuple[Place, Place]]:
        """Data and weights of each bias's first use, by the first tensor of the bias's leaf."""
        factors: dict[Place, tuple[Place, Place]] = {}
        for bias in self._shared.biases:
            factors.setdefault(self._first(bias.place), (bias.data, bias.weights))
        return factors

    @functools.cached_property
    def _of_many_grids(self) -> frozenset[Place]:
        """The first tensors of the leaves of biases whose uses have different scales."""
        products: dict[Place, list[np.ndarray]] = {}
        for bias in self._shared.biases:
            factors = [self._shared.tensor(p).quantization for p in (bias.data, bias.weights)]
            scales = [np.ones(1, np.float32) if q is None else q.scale for q in factors]
            products.setdefault(self._first(bias.place), []).append(scales[0] * scales[1])
        return frozenset(
            place
            for place, own in products.items()
            if not all(np.allclose(own[0], other, rtol=NEAR) for other in own)
        )

    def _first(self, place: Place) -> Place:
        return self._leaves.stored(place) or place

    @functools.cached_property
    def by_place(self) -> dict[Place, str]:
        """The name in `scales` of a tensor's scale."""
        return {place: name for name, scale in self.scales.items() for place in scale.tensors}

    def _names(self) -> list[tuple[str, Place]]:
        """Names of computed tensors in execution order, then of all; places may be repeated."""
        rows: list[tuple[str, Place]] = []
        for s in self._subgraphs:
            rows += [(name, (s.index, i)) for name, i in computed_names(s).items()]
        for s in self._subgraphs:
            rows += [(self._constant_name(s, t), (s.index, t.index)) for t in s.tensors]
        return rows

    def _constant_name(self, subgraph: Subgraph, tensor: Tensor) -> str:
        if tensor.stored is None:
            return tensor.name
        return self._leaves.name((subgraph.index, tensor.index))

    # ---- weights

    def is_weight(self, place: Place) -> bool:
        """Whether a constant is a weight with a grid: stored as quantized integers."""
        return self._grid(place) is not None

    def scale_of_weight(self, place: Place) -> str | None:
        """The name in `scales` of a constant tensor's scale, if it can change."""
        stored = self._leaves.stored(place)
        return None if stored is None else self.by_place.get(stored)

    def on_grid(self, place: Place, leaf: Any, scales: Mapping[str, Any]) -> Any:
        """Round a leaf to the grid of its stored integers.

        A bias that operators with different scales share has several grids. It is zero, which is on
        all of them, so it is returned unchanged and has no gradient.

        Args:
            place: a constant tensor with this leaf.
            leaf: float32, in the file's layout.
            scales: the trained scales, by name.
        """
        grid = self._grid(place)
        if grid is None:
            return leaf
        if self._leaves.stored(place) in self._of_many_grids:
            return lax.stop_gradient(leaf)
        name = self.scale_of_weight(place)
        if name is not None and name in scales:
            return grid.put(leaf, scales[name])
        factors = self._factors(place)
        if any(self.by_place.get(p) in scales for p in factors):
            return grid.put_by(leaf, self._bias_scale(grid, factors, scales))
        return grid.put(leaf)

    def _factors(self, place: Place) -> Sequence[Place]:
        stored = self._leaves.stored(place)
        return () if stored is None else self._biases.get(stored, ())

    def _bias_scale(
        self, grid: WeightGrid, factors: Sequence[Place], scales: Mapping[str, Any]
    ) -> Any:
        """A bias's scale: the file's, times the change of the product of its factors' scales."""
        before, now = np.ones(1, np.float32), jnp.ones(1, np.float32)
        for place in factors:
            q = self._shared.tensor(place).quantization
            file = np.ones(1, np.float32) if q is None else q.scale
            trained = scales.get(self.by_place.get(place, ""), file)
            before = before * file
            now = now * learned_scales.positive(trained, 1.0)
        change = jax_affine.quotient(now, before).astype(np.float32)  # exactly 1 without a change
        return jnp.asarray(grid.quantization.scale) * change

    def _grid(self, place: Place) -> WeightGrid | None:
        if place not in self._grids:
            stored = self._leaves.stored(place)
            self._grids[place] = None if stored is None else self._grid_of(stored)
        return self._grids[place]

    def _grid_of(self, place: Place) -> WeightGrid | None:
        tensor = self._shared.tensor(place)
        q, data = tensor.quantization, tensor.data
        if q is None or data is None or not q.has_scale or tensor.dtype.kind not in "iuV":
            return None
        if place in self._read_as_int8:
            data = data.view(np.int8)
            q = dataclasses.replace(q, zero_point=np.zeros_like(q.zero_point))
        return WeightGrid(q, data.dtype, affine.is_narrow(data, q))

    @functools.cached_property
    def _read_as_int8(self) -> frozenset[Place]:
        return frozenset(
            (s.index, i)
            for s in self._subgraphs
            for i in fake_quantization.read_as_int8(
                s.operators, {t.index: t.spec() for t in s.tensors}
            )
        )

    def _quantization(self, place: Place) -> Quantization:
        quantization = self._shared.tensor(place).quantization
        assert quantization is not None  # all places of `ScaleGroup` have scales
        return quantization


def _has_scale(tensor: Tensor) -> bool:
    return tensor.quantization is not None and tensor.quantization.has_scale
