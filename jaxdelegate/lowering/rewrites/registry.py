"""All rewrites, by their names in the option `rewrites`."""

from collections.abc import Callable, Collection, Iterable, Mapping

from jaxdelegate.errors import OptionError
from jaxdelegate.lowering.rewrites import (
    attention,
    cleanup,
    decode_attention,
    epilogues,
    gelu,
    layer_norm,
    padding,
    products,
    scaling,
)
from jaxdelegate.lowering.rewrites.pattern_rewriter import IsLowered, PatternRewriter, Rewritten
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.spec import TensorSpec

Rewrite = Callable[[PatternRewriter, Operator], bool]  # whether it changed anything

# In the order of application: each may enable those after it.
_MODULES = (
    cleanup,
    padding,
    scaling,
    gelu,
    layer_norm,
    decode_attention,
    attention,
    products,
    epilogues,
)

REWRITES: dict[str, Rewrite] = {
    name: rewrite for module in _MODULES for name, rewrite in module.REWRITES.items()
}


def enabled(text: str) -> tuple[str, ...]:
    """The rewrites of "all", "none", or comma-separated names."""
    if text == "none":
        return ()
    if text == "all":
        return tuple(REWRITES)
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in REWRITES]
    if unknown:
        raise OptionError(
            f"rewrites: expected 'all', 'none' or some of {', '.join(REWRITES)}; got {unknown[0]!r}"
        )
    return names


def rewritten(
    operators: Iterable[Operator],
    specs: Mapping[int, TensorSpec],
    kept: Collection[int],
    is_lowered: IsLowered,
    names: Collection[str] = tuple(REWRITES),
) -> Rewritten:
    """Apply the named rewrites until none matches.

    Operators are in execution order; values of `kept` tensors must not change; `is_lowered` says
    whether a changed operator can be lowered.
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
