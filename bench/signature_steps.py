"""A signature of a language model with caches: stock LiteRT, `on_device`, and `jax.jit`.

    NPROC=1 taskset -c 0 python bench/signature_steps.py --graph=model.litertlm!prefill_decode
        [--signatures=decode,prefill_32] [--filled=0,1] [--rounds=25]
        [--out=bench/results/signature_steps.jsonl]

litert       the stock interpreter's invoke of the signature, its inputs set before
litert_call  a call of its SignatureRunner, which also copies caches in and out
on_device    our SignatureRunner's `on_device`, whose caches stay arrays of jax
jit          `jax.jit` of `function(weights="prepared")`, whose caches are donated

The tokens are as many as the signature takes. They fill the start of the caches (0), their end (1),
or a place between. Masks hide the places after them. Caches hold random numbers. Before, outputs
are compared with those of LiteRT's reference kernels: those that are no caches, or else the caches.
`error` is the largest difference, of the largest value of that output. Dynamic range kernels round
differently, XNNPACK's too: ours may not differ by more than XNNPACK's.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType
from harness import append, interleaved, ratios, spread, threads

import jaxdelegate as jd
from jaxdelegate.function.records import Signature
from jaxdelegate.lm.graph import TOKENS
from jaxdelegate.lm.inputs import empty_caches, step_inputs
from jaxdelegate.lm.places import Places, first
from jaxdelegate.model.source import open_source

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "A model, or one in a bundle.", required=True)
flags.DEFINE_list("signatures", ["decode"], "Keys.")
flags.DEFINE_list("filled", ["0", "1"], "Parts of the caches that earlier tokens fill.")
flags.DEFINE_integer("rounds", 25, "Timed rounds.", 3)
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

_ROUNDING = 1e-5  # of the largest value, by which float32 results may differ


def arguments(signature: Signature, filled: float) -> dict[str, np.ndarray]:
    inputs, rng = signature.inputs, np.random.default_rng(0)
    places, tokens = Places.among(inputs), first(TOKENS, inputs)
    assert places.mask is not None
    assert tokens is not None
    count = int(np.prod(inputs[tokens].shape))
    start = int(filled * (inputs[places.mask].shape[-1] - count))
    caches = {
        name: (0.1 * rng.normal(size=array.shape)).astype(array.dtype)
        for name, array in empty_caches(signature).items()
    }
    given = step_inputs(signature, np.arange(count), start, caches)
    return {name: np.asarray(array) for name, array in given.items()}


def on_device(content: bytes, key: str, given: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[jd.JaxDelegate()])
    runner = interpreter.get_signature_runner(key)
    held: dict[str, Any] = {name: jnp.asarray(array) for name, array in given.items()}

    def run() -> Any:
        results = jax.block_until_ready(runner.on_device(**held))  # type: ignore[no-untyped-call]
        held.update((name, value) for name, value in results.items() if name in held)
        return results

    return run


def jitted(content: bytes, key: str, given: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    functions = jd.load(content)
    apply, params = functions.function(key, weights="prepared")
    caches = set(given).intersection(jax.eval_shape(lambda x: apply(params, x), dict(given)))
    run = jax.jit(lambda held, x: apply(params, {**held, **x}), donate_argnums=0)
    held = {name: jnp.array(given[name]) for name in caches}
    others = {name: jnp.asarray(array) for name, array in given.items() if name not in caches}

    def step() -> Any:
        results = jax.block_until_ready(run(dict(held), others))  # type: ignore[no-untyped-call]
        held.update((name, results[name]) for name in caches)
        return results

    return step


def error(found: Mapping[str, Any], wanted: Mapping[str, np.ndarray], caches: set[str]) -> float:
    compared = wanted.keys() - caches or wanted.keys()
    return max(
        float(np.abs(np.asarray(found[n], np.float64) - wanted[n]).max() / np.abs(wanted[n]).max())
        for n in compared
    )


def measure(content: bytes, key: str, filled: float) -> dict[str, Any]:
    stock = StockInterpreter(model_content=content, num_threads=threads())
    runner = stock.get_signature_runner(key)
    given = arguments(jd.load(content).signatures[key], filled)
    reference = StockInterpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    wanted = reference.get_signature_runner(key)(**given)
    runs: dict[str, Callable[[], Any]] = {
        "litert": lambda: runner._interpreter_wrapper.Invoke(runner._subgraph_index),
        "litert_call": lambda: runner(**given),
        "on_device": on_device(content, key, given),
        "jit": jitted(content, key, given),
    }
    # The call leaves inputs set for `litert`.
    results = {name: run() for name, run in runs.items() if name != "litert"}
    errors = {name: error(found, wanted, set(given)) for name, found in results.items()}
    most = max(errors["litert_call"], _ROUNDING)
    assert max(errors.values()) <= most, errors
    times = interleaved(runs, rounds=FLAGS.rounds)
    return {
        "error": errors,
        "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
        "ratio_to_litert": ratios(times, "litert"),
    }


def main(_argv: list[str]) -> None:
    source = open_source(FLAGS.graph)
    with jax.enable_x64(True):  # positions may be int64
        for key, filled in itertools.product(FLAGS.signatures, map(float, FLAGS.filled)):
            found = measure(bytes(source.content), key, filled)
            name = source.name.rpartition("/")[2]
            head = {"bench": "signature_steps", "graph": name, "signature": key, "filled": filled}
            append({**head, "threads": threads(), **found}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
