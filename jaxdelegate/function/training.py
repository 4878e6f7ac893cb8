"""How a model is trained: its weights on their grids, its scales among the parameters."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.function.parameters import Leaves, Place
from jaxdelegate.function.records import Scale, computed_names
from jaxdelegate.lowering import fake_quantization, learned_scales
from jaxdelegate.lowering.weight_grids import WeightGrid
from jaxdelegate.model.records import Subgraph, Tensor
from jaxdelegate.passes.shared_scales import NEAR, SharedScales, shared_scales
from jaxdelegate.quant import affine, jax_affine
from jaxdelegate.quant.params import Quantization

SUFFIX = "/scale"


class Trainable:
    """The grids of a model's weights, and the scales that can be trained."""

    def __init__(self, subgraphs: Sequence[Subgraph]) -> None:
        """Find out nothing yet; `subgraphs`: all of the model's."""
        self._subgraphs = subgraphs
        self._grids: dict[Place, WeightGrid | None] = {}

    @functools.cached_property
    def _leaves(self) -> Leaves:
        return Leaves(self._subgraphs, as_floats=True)

    # ---- scales

    @functools.cached_property
    def _shared(self) -> SharedScales:
        return shared_scales(self._subgraphs, self._leaves.shared())

    @functools.cached_property
    def scales(self) -> dict[str, Scale]:
        """All scales that can be trained, by name, in the order of execution."""
        named = {place: name for name, place in reversed(self._names())}
        found: dict[str, Scale] = {}
        order = {place: n for n, place in enumerate(dict.fromkeys(p for _, p in self._names()))}
        groups = (tuple(sorted(g, key=order.__getitem__)) for g in self._trainable())
        for places in sorted(groups, key=lambda g: order[g[0]]):
            name = self._unique(named[places[0]], places[0], found)
            found[name] = Scale(name, self._quantization(places[0]).scale, places)
        return found

    def _trainable(self) -> Iterator[tuple[Place, ...]]:
        """The groups whose scale can be any, and every bias that follows from it, too."""
        kept = {place for factors in self._kept_factors() for place in factors}
        for group in self._shared.groups:
            is_free = group.fixed_by is None and not group.is_unequal
            if is_free and kept.isdisjoint(group.tensors):
                yield group.tensors

    def _kept_factors(self) -> Iterator[tuple[Place, Place]]:
        """Data and weights whose bias has other uses, no scale, or is computed."""
        for bias in self._shared.biases:
            leaf = self._first(bias.place)
            factors = (bias.data, bias.weights)
            tensor = self._tensor(bias.place)
            if self._biases[leaf] != factors or tensor.stored is None or not _has_scale(tensor):
                yield from (factors, self._biases[leaf])

    @functools.cached_property
    def _biases(self) -> dict[Place, tuple[Place, Place]]:
        """For the first tensor of a bias's leaf, data and weights of its first use."""
        found: dict[Place, tuple[Place, Place]] = {}
        for bias in self._shared.biases:
            found.setdefault(self._first(bias.place), (bias.data, bias.weights))
        return found

    @functools.cached_property
    def _of_many_grids(self) -> frozenset[Place]:
        """Biases, by the first tensors of their leaves, whose uses have different scales."""
        products: dict[Place, list[np.ndarray]] = {}
        for bias in self._shared.biases:
            factors = [self._tensor(p).quantization for p in (bias.data, bias.weights)]
            scales = [np.ones(1, np.float32) if q is None else q.scale for q in factors]
            products.setdefault(self._first(bias.place), []).append(scales[0] * scales[1])
        return frozenset(
            place
            for place, own in products.items()
            if not all(np.allclose(own[0], other, rtol=NEAR) for other in own)
        )

    def _first(self, place: Place) -> Place:
        """The first tensor of a constant's leaf."""
        return self._leaves.stored(*place) or place

    @functools.cached_property
    def by_place(self) -> dict[Place, str]:
        """Which of `scales` a tensor has."""
        return {place: name for name, scale in self.scales.items() for place in scale.tensors}

    def _names(self) -> list[tuple[str, Place]]:
        """What is computed first, in the order of execution; a place may come twice."""
        rows: list[tuple[str, Place]] = []
        for s in self._subgraphs:
            rows += [(name, (s.index, i)) for name, i in computed_names(s).items()]
        for s in self._subgraphs:
            rows += [(self._constant_name(s, t), (s.index, t.index)) for t in s.tensors]
        return rows

    def _constant_name(self, subgraph: Subgraph, tensor: Tensor) -> str:
        if tensor.stored is None:
            return tensor.name
        return self._leaves.name(subgraph.index, tensor.index)

    def _unique(self, name: str, place: Place, taken: Mapping[str, Any]) -> str:
        if name + SUFFIX not in taken:
            return name + SUFFIX
        subgraph, tensor = place
        at = f"{tensor}" if subgraph == 0 else f"{subgraph}.{tensor}"
        return f"{name}#{at}{SUFFIX}"

    # ---- weights

    def is_weight(self, place: Place) -> bool:
        """Whether a constant is stored as quantized integers, and read as floats."""
        return self._grid(place) is not None

    def scale_of_weight(self, place: Place) -> str | None:
        """Which of `scales` a constant tensor has, if it is quantized and its scale can change."""
        stored = self._leaves.stored(*place)
        return None if stored is None else self.by_place.get(stored)

    def on_grid(self, place: Place, leaf: Any, scales: Mapping[str, Any]) -> Any:
        """A leaf on the grid of the integers that the file stores for it.

        A bias that operators with different scales share has several grids, and is zero on all of
        them: it stays as it is, and has no gradient.

        Args:
            place: the constant tensor that reads it.
            leaf: float32, in the file's layout.
            scales: those that are trained, by name.
        """
        grid = self._grid(place)
        if grid is None:
            return leaf
        if self._leaves.stored(*place) in self._of_many_grids:
            return lax.stop_gradient(leaf)
        name = self.scale_of_weight(place)
        if name is not None and name in scales:
            return grid.put(leaf, scales[name])
        factors = self._factors(place)
        if any(self.by_place.get(p) in scales for p in factors):
            return grid.put_by(leaf, self._bias_scale(grid, factors, scales))
        return grid.put(leaf)

    def _factors(self, place: Place) -> Sequence[Place]:
        stored = self._leaves.stored(*place)
        return () if stored is None else self._biases.get(stored, ())

    def _bias_scale(
        self, grid: WeightGrid, factors: Sequence[Place], scales: Mapping[str, Any]
    ) -> Any:
        """The file's, times what has become of the product that it was of."""
        before, now = np.ones(1, np.float32), jnp.ones(1, np.float32)
        for place in factors:
            q = self._tensor(place).quantization
            file = np.ones(1, np.float32) if q is None else q.scale
            given = scales.get(self.by_place.get(place, ""), file)
            before = before * file
            now = now * learned_scales.positive(given, 1.0)
        change = jax_affine.quotient(now, before).astype(np.float32)  # exactly 1 if there is none
        return jnp.asarray(grid.quantization.scale) * change

    def _grid(self, place: Place) -> WeightGrid | None:
        if place not in self._grids:
            stored = self._leaves.stored(*place)
            self._grids[place] = None if stored is None else self._grid_of(stored)
        return self._grids[place]

    def _grid_of(self, place: Place) -> WeightGrid | None:
        tensor = self._tensor(place)
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

    def _tensor(self, place: Place) -> Tensor:
        return self._subgraphs[place[0]].tensors[place[1]]

    def _quantization(self, place: Place) -> Quantization:
        quantization = self._tensor(place).quantization
        assert quantization is not None  # it has a scale
        return quantization


def _has_scale(tensor: Tensor) -> bool:
    return tensor.quantization is not None and tensor.quantization.has_scale
