"""Random graphs: valid .tflite files of 1 to 12 operators, each from an integer seed.

    graph = random_graph(7)
    interpreter = Interpreter(model_content=graph.content)

Choices come from a numpy Generator, not from hypothesis: a seed names the same graph in any shard
and version, and a graph is shrunk by dropping operators, which keep their operands' values.
"""

import dataclasses
import functools

import numpy as np

from tests.support.graph_drawing import Drawing, Mood
from tests.support.graph_records import Graph
from tests.support.random_operators import LEFT_OUT as LEFT_OUT
from tests.support.random_operators import NOT_IN_LITERT, OPERATORS

_MOST_OPERATORS = 12


@dataclasses.dataclass(frozen=True, eq=False)
class RandomGraph:
    """The graph that `random_graph` draws for a seed."""

    seed: int
    graph: Graph
    mood: Mood

    @functools.cached_property
    def content(self) -> bytes:
        return self.graph.model()

    @property
    def inputs(self) -> list[np.ndarray]:
        return self.graph.feeds

    @property
    def description(self) -> str:
        """The seed, the mood and the operators."""
        moods = [f.name for f in dataclasses.fields(self.mood) if getattr(self.mood, f.name)]
        return f"seed {self.seed}: {' '.join((*moods, ''))}{' '.join(self.graph.operators)}"


def random_graph(seed: int, *, operator: str | None = None, size: int | None = None) -> RandomGraph:
    """The graph of a seed.

    Args:
        seed: at least 0.
        operator: the first operator; None: a random one.
        size: how many operators to draw, some of which need a second one; None: 1 to 12, fewer
            more often.
    """
    rng = np.random.default_rng(seed)
    mood = Mood(*(bool(rng.random() < p) for p in (0.2, 0.06, 0.1, 0.1)))
    names = [n for n in OPERATORS if mood.unlimited or n not in NOT_IN_LITERT]
    drawing = Drawing(rng, mood)
    count = min(int(rng.geometric(0.22)), _MOST_OPERATORS) if size is None else size
    while len(drawing.nodes) < count:
        first = operator if not drawing.nodes else None
        OPERATORS[first or drawing.one_of(names)](drawing)
    return RandomGraph(seed, drawing.graph(_outputs(drawing)), mood)


def _outputs(d: Drawing) -> list[int]:
    """Unread results; sometimes also an intermediate result, an input or a constant."""
    made = [t for node in d.nodes for t in node.outputs]
    read = {t for node in d.nodes for t in node.inputs}
    outputs = [t for t in made if t not in read]
    if d.chance(0.2) and len(made) > len(outputs):
        outputs.append(d.one_of([t for t in made if t in read]))
    if d.chance(0.04) and d.inputs:
        outputs.append(d.one_of(d.inputs))
    if d.chance(0.04):
        outputs.append(d.const(d.values(d.shape(1, 2), np.float32)))
    return [t for t in outputs if d.tensors[t].dtype.kind != "V"]
