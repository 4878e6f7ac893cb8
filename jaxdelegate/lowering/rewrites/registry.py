"""All rewrites, by the names that the option `rewrites` knows them by."""

from collections.abc import Callable, Collection, Iterable, Mapping

from jaxdelegate.errors import OptionError
from jaxdelegate.lowering.rewrites import (
    attention,
    cleanup,
    dilation,
    epilogues,
    gelu,
    layer_norm,
    padding,
    scaling,
)
from jaxdelegate.lowering.rewrites.pattern_rewriter import IsLowered, PatternRewriter, Rewritten
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.spec import TensorSpec

Rewrite = Callable[[PatternRewriter, Operator], bool]  # whether it changed anything

# As they are tried: each may make room for those after it.
_MODULES = (cleanup, dilation, padding, scaling, gelu, layer_norm, attention, epilogues)

REWRITES: dict[str, Rewrite] = {
    name: rewrite for module in _MODULES for name, rewrite in module.REWRITES.items()
}


def enabled(text: str) -> tuple[str, ...]:
    """The rewrites that the option names: "all", "none", or names with commas.

    Raises:
        OptionError: an unknown name; lists those that there are.
    """
    if text in ("all", "none"):
        return tuple(REWRITES) if text == "all" else ()
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in REWRITES]
    if unknown:
        raise OptionError(
            f"rewrites: want 'all', 'none' or names of {', '.join(REWRITES)}, got {unknown[0]!r}"
        )
    return names


def rewritten(
    operators: Iterable[Operator],
    specs: Mapping[int, TensorSpec],
    kept: Collection[int],
    is_lowered: IsLowered,
    names: Collection[str] = tuple(REWRITES),
) -> Rewritten:
    """Apply the named rewrites until none of them finds anything.

    Args:
        operators: of one partition, in execution order.
        specs: of every tensor that they touch.
        kept: tensors whose values must come out as they are.
        is_lowered: whether a changed operator still has a lowering.
        names: which rewrites to apply.
    """
    rewriter = PatternRewriter(operators, specs, kept, is_lowered)
    for name, rewrite in REWRITES.items():
        if name not in names:
            continue
        for operator in rewriter.operators():
            now = rewriter.get(operator.index)
            while now is not None and rewrite(rewriter, now):
                now = rewriter.get(operator.index)
    return rewriter.result()
