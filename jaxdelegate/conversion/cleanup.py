"""Makes the graph what a person would have written."""

from jaxdelegate.conversion import activations, layouts, patterns
from jaxdelegate.conversion.graph import Graph
from jaxdelegate.conversion.rewriter import Rule, drop_dead, merge_equal, rewrite

_ARITHMETIC: dict[str, tuple[Rule, ...]] = {
    op: (*layouts.RULES.get(op, ()), *patterns.RULES.get(op, ()))
    for op in sorted({*layouts.RULES, *patterns.RULES})
}


def cleaned(graph: Graph) -> None:
    """Simplify a graph and those that it calls, in place."""
    for called in graph.called():
        cleaned(called)
    drop_dead(graph)
    merge_equal(graph)
    # Patterns before transposes move into them, and activations before a factor of one is moved.
    for rules in (
        activations.RULES,
        patterns.RULES,
        _ARITHMETIC,
        activations.RULES,
        patterns.FUSING,
    ):
        rewrite(graph, rules)
    rewrite(graph, patterns.LAST)
    merge_equal(graph)
    drop_dead(graph)
