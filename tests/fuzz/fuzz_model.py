"""Fuzz the code that runs without jax: read a file, propagate its shapes, lay out its tensors.

    python -m tests.fuzz.fuzz_model CORPUS...              coverage-guided, needs atheris
    python -m tests.fuzz.fuzz_model --runs=9999 CORPUS...  random changes, needs nothing

A file must load, or be refused with a JaxDelegateError. CORPUS are .tflite files, or folders of
them; atheris adds what it finds to the first folder. Its own flags, such as -max_total_time=600,
are passed on. A file that fails is written to crash.tflite or crash-*. The test suite does not run
this; `run_mutations.py` invokes damaged models, too.
"""

import argparse
import pathlib
import random
import sys
from collections.abc import Callable

from tests.fuzz.mutations import mutated

Target = Callable[[bytes], None]


def target() -> Target:
    """The code under test, which imports its modules here so that they can be instrumented."""
    from jaxdelegate.errors import JaxDelegateError
    from jaxdelegate.interpreter import Interpreter
    from jaxdelegate.model.records import read_model

    def one(content: bytes) -> None:
        try:
            for graph in read_model(content).subgraphs:
                for tensor in graph.tensors:
                    tensor.spec()
            Interpreter(model_content=content, max_tensor_bytes=1 << 26).allocate_tensors()
        except JaxDelegateError:
            return

    return one


def files(corpus: list[pathlib.Path]) -> list[pathlib.Path]:
    """The files that were named, and those in folders."""
    return [f for p in corpus for f in (sorted(p.rglob("*.tflite")) if p.is_dir() else [p])]


def guided(corpus: list[pathlib.Path], flags: list[str]) -> None:
    """Let atheris look for inputs that reach new code."""
    import atheris  # not a dependency of the tests

    with atheris.instrument_imports(include=["jaxdelegate"]):
        one = target()
        one(files(corpus)[0].read_bytes())  # modules that are imported late
    atheris.Setup([sys.argv[0], *flags, *map(str, corpus)], one)
    atheris.Fuzz()


def main() -> None:
    """Run atheris, or `--runs` random changes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("corpus", nargs="+", type=pathlib.Path)
    options, flags = parser.parse_known_args()
    if options.runs == 0:
        guided(options.corpus, flags)
        return
    rng, one = random.Random(options.seed), target()
    seeds = [path.read_bytes() for path in files(options.corpus)]
    for _ in range(options.runs):
        content, damage = mutated(rng.choice(seeds), rng.randrange(2**32), rng.choice(seeds))
        try:
            one(content)
        except BaseException:
            pathlib.Path("crash.tflite").write_bytes(content)
            print(damage)
            raise


if __name__ == "__main__":
    main()
