"""What each model of a folder can do as a JAX function: a table of models and capabilities.

    python bench/jax_functions.py --models=folder [--only=substring] [--jobs=2] [--limit_s=300]
        [--out=jax_functions.jsonl]

Every cell is run; a refused one holds the reason. Every model has its own process.

load      `model(*inputs)` runs.
jit       `jax.jit(apply)` agrees with it.
vmap      `jax.vmap(apply)` over two inputs agrees with two single runs.
grad      `jax.grad` by weights and float inputs: finite; of float models also the slope along the
          gradient, by central differences. With `io="float"`.
batch     `model.batched(2)` agrees with two single runs; "native" or "vmap".
cpu, cuda, tpu    `model.export(batch="b")`, stored and read again; the CPU's is called with two
          inputs and agrees with two single runs, the others are counted: convolutions, products,
          slices.

A model that ends in ARG_MAX or non-maximum suppression is compared by what enters it.
Two results agree if they differ by at most 1e-3 of the largest value. In quantized networks a last
bit may move a value to the next step, and that others: values may differ by 10% of the largest one,
8 or 16 bit integers of their range, and by 1% in the mean; indices and counts in 1% of the
elements.
"""

import concurrent.futures
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from harness import append

FLAGS = flags.FLAGS
flags.DEFINE_string("models", None, "A folder with .tflite files, in folders of it too.")
flags.DEFINE_string("only", "", "Only models whose path holds this.")
flags.DEFINE_integer("jobs", 2, "Processes at a time.", 1)
flags.DEFINE_integer("limit_s", 300, "Seconds for one model.", 1)
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")
flags.DEFINE_string("child", None, "For the script itself: the graph of one process.")

CELLS = "load", "jit", "vmap", "grad", "batch", "cpu", "cuda", "tpu"
_PLATFORMS = CELLS[5:]
_COUNTED = "convolution", "dot_general", "slice "
_AGREES, _AGREES_QUANTIZED = 1e-3, 1e-1
_INDEX_BYTES = 4  # integers of this size and larger are indices or counts
# Operators that choose by comparing: the least difference that keeps their choice.
_CHOOSING = (
    "ARG_MAX",
    "NON_MAX_SUPPRESSION_V4",
    "NON_MAX_SUPPRESSION_V5",
    "TFLite_Detection_PostProcess",
)
_STEPS = (
    1e-3,
    1e-4,
    3e-5,
    1e-5,
    3e-6,
    1e-6,
    3e-7,
    1e-7,
    3e-8,
)  # of central differences, relative to the weights


def inputs_of(model: Any, rng: np.random.Generator) -> list[np.ndarray]:
    """Seeded inputs: floats in [-1, 1], any quantized integers, other integers 0 or 1."""
    main = model.graph.subgraphs[0]
    arrays = []
    for tensor in (main.tensors[i] for i in main.inputs):
        if tensor.dtype.kind == "f":
            arrays.append(rng.uniform(-1, 1, tensor.shape).astype(tensor.dtype))
        elif tensor.dtype.kind == "b":
            arrays.append(rng.integers(0, 2, tensor.shape).astype(bool))
        elif tensor.spec().is_quantized:
            info = np.iinfo(tensor.dtype)
            arrays.append(rng.integers(info.min, info.max + 1, tensor.shape, tensor.dtype))
        else:
            arrays.append(rng.integers(0, 2, tensor.shape).astype(tensor.dtype))
    return arrays


def check(got: Sequence[Any], want: Sequence[Any], *, is_quantized: bool) -> None:
    """Whether two results agree.

    Raises:
        AssertionError: they do not; says how far off.
    """
    for i, pair in enumerate(zip(got, want, strict=True)):
        a, b = map(np.asarray, pair)
        assert a.shape == b.shape, f"output {i}: {a.shape}, not {b.shape}"
        assert a.dtype == b.dtype, f"output {i}: {a.dtype}, not {b.dtype}"
        is_value = a.dtype.kind == "f" or a.dtype.itemsize < _INDEX_BYTES
        if a.size and is_value:
            _check_values(a, b, f"output {i}", is_quantized=is_quantized)
        elif a.size:
            other = np.mean(a != b)
            assert other <= 0.01, f"output {i}: {100 * other:.1f}% others"


def _check_values(a: np.ndarray, b: np.ndarray, what: str, *, is_quantized: bool) -> None:
    if a.dtype.kind == "f":
        assert np.array_equal(np.isnan(a), np.isnan(b)), f"{what}: NaN elsewhere"
        most = float(np.abs(b[np.isfinite(b)]).max(initial=1e-6))
        off = np.abs(np.where(a == b, 0, np.nan_to_num(a) - np.nan_to_num(b)))
    else:
        most = (
            float(np.ptp([np.iinfo(a.dtype).min, np.iinfo(a.dtype).max]))
            if a.dtype.kind in "iu"
            else 1
        )
        off = np.abs(a.astype(np.int64) - b.astype(np.int64))
    bound = (_AGREES_QUANTIZED if is_quantized else _AGREES) * most
    told = f"{what}: off by {off.max():.3g} of {most:.3g}"
    assert off.max() <= bound, told
    assert not is_quantized or off.mean() <= bound / 10, told


def _before_choices(model: Any) -> Any:
    main = model.graph.subgraphs[0]
    ends = [op for op in main.operators if set(op.outputs).intersection(main.outputs)]
    choosing = [op for op in ends if op.name in _CHOOSING]
    computed = {i for op in main.operators for i in op.outputs}
    entering = [main.tensors[i].name for op in choosing for i in op.inputs if i in computed]
    return model.until(entering) if entering else model


def _gradient(model: Any, x: Sequence[Any]) -> str:
    """The gradient at these inputs, or beyond an edge that they meet (a root or power at zero)."""
    try:
        return _grad(model, x)
    except AssertionError:
        told = _grad(model, [0.25 + 0.75 * abs(a) if a.dtype == np.float32 else a for a in x])
        return f"{told}, at inputs in [0.25, 1]"


def _grad(model: Any, x: Sequence[Any]) -> str:
    import jax  # noqa: PLC0415 (for children only)
    import jax.numpy as jnp  # noqa: PLC0415

    apply, params = model.function(io="float")
    given = [
        np.asarray(a, np.float32) * 0.1 if d == np.float32 and a.dtype != d else a
        for a, d in zip(x, (i.dtype for i in apply.inputs()), strict=True)
    ]
    places = [i for i, a in enumerate(given) if a.dtype == np.float32]
    rng = np.random.default_rng(1)
    outputs = jax.eval_shape(apply, params, *given)
    weights = [rng.normal(size=y.shape).astype(np.float32) for y in outputs]
    used = [i for i, y in enumerate(outputs) if jnp.issubdtype(y.dtype, jnp.floating)]
    if not used:
        return "no: no output is a float"
    if not params and not places:
        return "no: neither weights nor float inputs"

    def loss(point: Any) -> Any:
        params, floats = point
        arrays = list(given)
        for i, a in zip(places, floats, strict=True):
            arrays[i] = a
        y = apply(params, *arrays)
        return sum((y[i].astype(jnp.float32) * weights[i]).mean() for i in used)

    point = (params, [jnp.asarray(given[i]) for i in places])
    slopes = jax.jit(jax.grad(loss))(point)
    leaves = [np.asarray(g, np.float32) for g in jax.tree.leaves(slopes)]
    assert all(np.isfinite(g).all() for g in leaves), "not finite"
    some = sum(bool(g.any()) for g in leaves)
    norm = float(np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in leaves)))
    told = f"{some} of {len(leaves)} leaves not zero"
    if not norm or any(p.quantization is not None for p in model.parameters.values()):
        return told
    size = np.sqrt(sum(np.square(np.asarray(p, np.float64)).sum() for p in jax.tree.leaves(point)))
    value = jax.jit(loss)
    ratios = []
    for step in _STEPS:
        h = step * float(size) / norm
        ends = [value(jax.tree.map(lambda p, g, h=h: p + h * g, point, slopes)) for h in (h, -h)]
        ratios.append(float((ends[0] - ends[1]) / (2 * h * norm * norm)))
    # A step may be so long that it leaves the domain of a logarithm or a root.
    best = min(filter(np.isfinite, ratios), key=lambda r: abs(r - 1), default=np.nan)
    assert abs(best - 1) < 0.05, f"the slope is {best:.3f} times the gradient's; {told}"
    return f"{told}; slope {best:.3f}"


class Measured:
    """One model and its outputs for two seeded inputs, one by one."""

    def __init__(self, graph: str) -> None:
        """Load it and run it."""
        import jaxdelegate as jd  # noqa: PLC0415 (for children only)

        self.model = _before_choices(jd.load(graph))
        rng = np.random.default_rng(0)
        self.x, other = inputs_of(self.model, rng), inputs_of(self.model, rng)
        self.want = [self.model(*self.x), self.model(*other)]
        self.both = [np.stack(pair) for pair in zip(self.x, other, strict=True)]

    def _check(self, got: Sequence[Any], want: Sequence[Any]) -> None:
        subgraphs = self.model.graph.subgraphs
        is_quantized = any(t.spec().is_quantized for s in subgraphs for t in s.tensors)
        check(got, want, is_quantized=is_quantized)

    def jit(self) -> str:
        """One compiled run."""
        import jax  # noqa: PLC0415

        apply, params = self.model.function()
        self._check(jax.jit(apply)(params, *self.x), self.want[0])
        return "ok"

    def vmap(self) -> str:
        """`vmap` over two inputs."""
        import jax  # noqa: PLC0415

        apply, params = self.model.function()
        with jax.enable_x64(True):
            got = jax.jit(jax.vmap(apply, (None, *(0 for _ in self.both))))(params, *self.both)
        self._check(got, [np.stack(pair) for pair in zip(*self.want, strict=True)])
        return "ok"

    def batch(self) -> str:
        """Run a batch of two; how it is computed."""
        batched = self.model.batched(2)
        arrays, want = self._batch()
        self._check(batched(*arrays), want)
        return str(batched.batching)[:200]

    def exported(self, platform: str) -> str:
        """Export for any batch, store and read it, and call it on the CPU; what it holds."""
        import jax  # noqa: PLC0415

        stored = self.model.export(platform, "b")[platform].serialize()
        again = jax.export.deserialize(stored)
        text = again.mlir_module()
        n = {word: text.count(f"stablehlo.{word}") for word in _COUNTED}
        if platform == "cpu":
            arrays, want = self._batch()
            with jax.enable_x64(True):
                self._check(again.call(self.model.function()[1], *arrays), want)
        told = ", ".join(f"{count} {word.strip()}" for word, count in n.items() if count)
        return f"ok: {told or 'neither convolutions nor products'}"

    def _batch(self) -> tuple[list[Any], list[Any]]:
        """Two inputs as a batch, and the outputs of two single runs."""
        shapes = [s.shape for s in self.model.batched(2).function()[0].inputs()]
        given, shared = [], False
        for pair, shape in zip(self.both, shapes, strict=True):
            if shape and pair.size == 2 * int(np.prod(shape[1:], dtype=np.int64)):
                given.append(pair.reshape((2, *shape[1:])))
            else:
                given.append(pair[0])
                shared = True
        runs = self.want
        if shared:
            second = [
                pair[0] if pair.shape[1:] == x.shape else pair[1]
                for pair, x in zip(self.both, given, strict=True)
            ]
            runs = [self.want[0], self.model(*second)]
        pairs = [np.stack([np.asarray(y) for y in pair]) for pair in zip(*runs, strict=True)]
        return given, [p.reshape((2, *p.shape[2:])) if p.shape[1:2] == (1,) else p for p in pairs]


def measure(graph: str) -> dict[str, Any]:
    """The cells of one model."""
    import jax  # noqa: F401, PLC0415 (outside of the first cell's time)

    cells: dict[str, Any] = {}

    def cell(name: str, run: Callable[[], str]) -> None:
        began = time.process_time()
        try:
            told = run()
        except AssertionError as error:
            told = f"WRONG: {error}"
        except Exception as error:  # every cell reports its error
            _, _, reasons = str(error).partition("XLA cannot run the whole model:\n")
            told = f"no: {type(error).__name__}: {' '.join((reasons or str(error)).split())}"[:300]
        cells[name] = told
        cells[f"{name}_s"] = round(time.process_time() - began, 1)

    found: list[Measured] = []

    def load() -> str:
        found.append(Measured(graph))
        return "ok"

    cell("load", load)
    if not found:
        return {**cells, **dict.fromkeys(CELLS[1:], "no: it does not load")}
    (model,) = found
    cell("jit", model.jit)
    cell("vmap", model.vmap)
    cell("grad", lambda: _gradient(model.model, model.x))
    cell("batch", model.batch)
    for platform in _PLATFORMS:
        cell(platform, functools.partial(model.exported, platform))
    return cells


def _row(graph: Path, root: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, f"--child={graph}"]
    began = time.monotonic()
    name = str(graph.relative_to(root))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            text=True,
            timeout=FLAGS.limit_s,
            env=environment,
        )
        lines = done.stdout.splitlines()
        crashed = {"load": f"no: the process ended with {done.returncode}: {done.stderr[-200:]}"}
        cells = json.loads(lines[-1]) if lines and not done.returncode else crashed
    except subprocess.TimeoutExpired:
        cells = {"load": f"no: more than {FLAGS.limit_s} s"}
    return {"model": name, **cells, "wall_s": round(time.monotonic() - began, 1)}


def main(_argv: Sequence[str]) -> None:
    """Run, print, store."""
    if FLAGS.child:
        print(json.dumps(measure(FLAGS.child)))
        return
    root = Path(FLAGS.models)
    graphs = [p for p in sorted(root.rglob("*")) if p.suffix in (".tflite", ".bin", ".lite")]
    chosen = [p for p in graphs if FLAGS.only in str(p)]
    with concurrent.futures.ThreadPoolExecutor(FLAGS.jobs) as pool:
        for row in pool.map(lambda p: _row(p, root), chosen):
            append(row, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
