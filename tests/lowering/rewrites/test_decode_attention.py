"""Fusion of a decode step's attention: the graphs that are matched, and those that are not."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.lowering.rewrites.registry import rewritten
from jaxdelegate.model.records import Operator, read_model
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    ConcatenationOptions,
    DecodeAttentionOptions,
    PackOptions,
    ReducerOptions,
    SoftmaxOptions,
)
from jaxdelegate.passes.propagation import declared_specs, propagate
from tests.support.decoder_families import EPSILON, FAMILIES, Family, decoder

G, R, H, S = 2, 3, 8, 40
KEPT = ReducerOptions(keep_dims=True)
FUSED = "fused_decode_attention"
ALL = ["fuse_layer_norm", "fuse_decode_attention"]


def operators(content: bytes, names: Sequence[str] = ALL, accepts: bool = True) -> list[Operator]:
    """Those of the first subgraph after rewrites, if rules accept everything or nothing."""
    model = read_model(content)
    subgraph = model.subgraphs[0]
    declared = declared_specs(subgraph)
    specs = dict(enumerate(propagate(subgraph.operators, declared, subgraphs=model.subgraphs)))
    new = rewritten(subgraph.operators, specs, subgraph.outputs, lambda *_: accepts, names)
    for operator in new.operators:
        assert all(i < 0 or i in new.specs for i in operator.inputs)
    return list(new.operators)


def fused(content: bytes) -> list[Operator]:
    return [op for op in operators(content) if op.name == FUSED]


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    family = FAMILIES[name]
    content = decoder(family, prefill=())
    found, names = fused(content), [op.name for op in operators(content)]
    assert len(found) == family.layers
    inside = {"SOFTMAX", "BATCH_MATMUL", "DYNAMIC_UPDATE_SLICE", "TANH", "STABLEHLO_COMPOSITE"}
    assert inside.isdisjoint(names)
    assert names.count("FULLY_CONNECTED") == 4 * family.layers + 1
    options: Any = found[0].options
    epsilon = pytest.approx(EPSILON if family.norms else 0.0)
    assert options == DecodeAttentionOptions(
        (1, family.groups, family.heads // family.groups, 64),
        pytest.approx(0.25),
        pytest.approx(family.cap),
        False,
        True,
        (epsilon, epsilon, 0.0),
    )
    *_, q_scale, k_scale, v_scale, cos, sin = found[0].inputs
    assert (q_scale >= 0, k_scale >= 0, v_scale) == (family.norms, family.norms, -1)
    assert (cos >= 0) == (sin >= 0) == family.rotates


def test_a_prompt_is_left_alone() -> None:
    assert not fused(decoder(FAMILIES["qwen3"], prefill=(8,)))


def test_what_the_rule_rejects_stays() -> None:
    content = decoder(Family(), prefill=())
    before, after = (operators(content, names, accepts=False) for names in ([], ALL))
    assert [op.name for op in before] == [op.name for op in after]


# ---- graphs that differ in one thing


@dataclasses.dataclass
class Step:
    """A decode step of one layer, written out; a test changes parts of it."""

    graph: Any
    update_shape: tuple[int, ...] = (1, G, 1, H)
    mask_shape: tuple[int, ...] = (1, 1, 1, S)
    turn: Callable[["Step", int], int] = lambda _step, x: x
    reads_more: str = ""  # what another operator reads

    def place(self, axis: int) -> int:
        zero = np.zeros((), np.int32)
        entries = [self.start if i == axis else zero for i in range(4)]
        return self.graph("PACK", *entries, options=PackOptions(4, 0))

    def content(self) -> bytes:
        g = self.graph
        self.start = g.builder.input((), np.int32)
        self.other = g.builder.input((), np.int32)
        q, k, v = g.input(1, G, R, H), g.input(1, G, 1, H), g.input(*self.update_shape)
        caches = [g.input(1, G, S, H) for _ in "kv"]
        self.turns = g.input(1, 1, H), g.input(1, 1, H)
        mask = g.input(*self.mask_shape)
        q, k = self.turn(self, q), self.turn(self, k)
        keys = g("DYNAMIC_UPDATE_SLICE", caches[0], k, self.place(2))
        self.start = self.other if self.reads_more == "two places" else self.start
        values = g("DYNAMIC_UPDATE_SLICE", caches[1], v, self.place(2))
        early = [g("NEG", keys)] if self.reads_more == "keys" else []
        scores = g("BATCH_MATMUL", q, keys, options=BatchMatMulOptions(adj_y=True))
        logits = g("ADD", scores, mask) if self.reads_more != "no mask" else scores
        shares = g("SOFTMAX", logits, options=SoftmaxOptions(beta=1.0))
        y = g("BATCH_MATMUL", shares, values, options=BatchMatMulOptions())
        late = {"shares": shares, "values": values, "scores": scores}.get(self.reads_more)
        more = [] if late is None else [g("NEG", late)]
        return g.content(y, keys, values, *early, *more)  # type: ignore[no-any-return]


def turned(step: Step, x: int, *, begins: tuple[int, int] = (H // 2, 0), last: Any = "MUL") -> int:
    """Rotated; `begins` of the two halves, the first of which is negative."""
    g = step.graph
    rows = R if g.builder is not None and x == 2 else 1
    size = np.array([1, G, rows, H // 2], np.int32)
    two, one = (g("SLICE", x, np.array([0, 0, 0, b], np.int32), size) for b in begins)
    two = g("NEG", two) if last == "NEG" else g("MUL", two, -1.0)
    other = g("CONCATENATION", two, one, options=ConcatenationOptions(3))
    cos, sin = step.turns
    return g("ADD", g("MUL", sin, other), g("MUL", x, cos))  # type: ignore[no-any-return]


def test_a_step_written_out(graph: Any) -> None:
    (found,) = fused(Step(graph).content())
    assert found.options == DecodeAttentionOptions((1, G, R, S), 1.0)
    assert len(found.outputs) == 3
    assert found.inputs[7:] == (-1,) * 5


@pytest.mark.parametrize("last", ["MUL", "NEG"])
def test_a_rotation_is_found(last: str, graph: Any) -> None:
    (found,) = fused(Step(graph, turn=lambda s, x: turned(s, x, last=last)).content())
    assert found.inputs[:2] == (2, 3)
    assert found.inputs[-2] >= 0


def test_another_rotation_is_not(graph: Any) -> None:
    """Its halves are the other way round; the rest is fused."""
    (found,) = fused(Step(graph, turn=lambda s, x: turned(s, x, begins=(0, H // 2))).content())
    assert found.inputs[-2:] == (-1, -1)
    assert found.inputs[0] != 2


def test_queries_alone_are_rotated(graph: Any) -> None:
    step = Step(graph, turn=lambda s, x: turned(s, x) if x == 2 else x)
    (found,) = fused(step.content())
    assert found.inputs[-2:] == (-1, -1)


@pytest.mark.parametrize("reads_more", ["values"])
def test_others_may_read_caches_later(reads_more: str, graph: Any) -> None:
    found = operators(Step(graph, reads_more=reads_more).content())
    assert [op.name for op in found][-2:] == [FUSED, "NEG"]


@pytest.mark.parametrize("reads_more", ["keys", "shares", "scores", "two places", "no mask"])
def test_what_else_is_read_or_differs(reads_more: str, graph: Any) -> None:
    """`keys`: before the kernel would have written them."""
    assert not fused(Step(graph, reads_more=reads_more).content())


def test_several_new_places(graph: Any) -> None:
    assert not fused(Step(graph, update_shape=(1, G, 2, H)).content())


def test_a_mask_for_each_query(graph: Any) -> None:
    assert not fused(Step(graph, mask_shape=(1, 1, R, S)).content())


def normalized(step: Step, x: int, size: int = H) -> int:
    g = step.graph
    mean = g("MEAN", g("MUL", x, x), np.array([-1], np.int32), options=KEPT)
    root = g("RSQRT", g("ADD", mean, 1e-5))
    return g("MUL", g("MUL", x, root), g.values(size))  # type: ignore[no-any-return]


def test_a_norm_written_out(graph: Any) -> None:
    """`fuse_layer_norm` comes first."""
    (found,) = fused(Step(graph, turn=normalized).content())
    options: Any = found.options
    assert options.epsilons == (pytest.approx(1e-5), pytest.approx(1e-5), 0.0)
    assert found.inputs[:2] == (2, 3)
    assert all(i >= 0 for i in found.inputs[7:9])


def test_a_norm_over_all_heads_stays(graph: Any) -> None:
    """OLMo 2 has such norms."""

    def over_all(step: Step, x: int) -> int:
        g, rows = step.graph, R if x == 2 else 1
        flat = g("RESHAPE", x, np.array([1, 1, G * rows * H], np.int32))
        y = normalized(step, flat, G * rows * H)
        return g("RESHAPE", y, np.array([1, G, rows, H], np.int32))  # type: ignore[no-any-return]

    (found,) = fused(Step(graph, turn=over_all).content())
    options: Any = found.options
    assert options.epsilons == (0.0, 0.0, 0.0)


def test_a_rotation_of_other_pairs_stays(graph: Any) -> None:
    """The halves of all heads together, not those of each."""

    def over_all(step: Step, x: int) -> int:
        g, size = step.graph, G * H
        if x == 2:
            return x
        flat = g("RESHAPE", x, np.array([1, 1, 1, size], np.int32))
        pieces = np.array([1, 1, 1, size // 2], np.int32)
        one, two = (g("SLICE", flat, np.array([0, 0, 0, b], np.int32), pieces) for b in (0, H))
        other = g("CONCATENATION", g("NEG", two), one, options=ConcatenationOptions(3))
        cos, sin = (g.input(1, 1, size) for _ in range(2))
        y = g("ADD", g("MUL", flat, cos), g("MUL", other, sin))
        return g("RESHAPE", y, np.array([1, G, 1, H], np.int32))  # type: ignore[no-any-return]

    (found,) = fused(Step(graph, turn=over_all).content())
    assert found.inputs[-2:] == (-1, -1)
    assert found.inputs[1] != 3
