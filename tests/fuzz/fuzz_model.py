"""Fuzz `read_model`: a file loads, or is refused with ModelError, and nothing else happens.

    python tests/fuzz/fuzz_model.py CORPUS...              coverage-guided, needs atheris
    python tests/fuzz/fuzz_model.py --runs=9999 CORPUS...  random changes, needs nothing

CORPUS are .tflite files. A file that fails is written to crash.tflite. Not run by the test suite.
"""

import argparse
import pathlib
import random
import sys

from jaxdelegate.errors import ModelError
from jaxdelegate.model.records import read_model

_WORDS = (0, 1, 4, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)


def one(content: bytes) -> None:
    """Read one file and all that is read lazily."""
    try:
        model = read_model(content)
    except ModelError:
        return
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.spec()


def changed(content: bytes, rng: random.Random) -> bytes:
    """The file with a few bytes, words or parts replaced."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                at &= ~3
                data[at : at + 4] = rng.choice(_WORDS).to_bytes(4, "little")
            case 3:
                start = rng.randrange(len(data))
                data[at : at + 8] = data[start : start + 8]
            case _:
                del data[at : at + rng.randint(1, 8)]
    return bytes(data)


def main() -> None:
    """Run atheris, or `--runs` random changes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("corpus", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    if options.runs == 0:
        import atheris  # not a dependency of the tests

        atheris.instrument_all()
        atheris.Setup([sys.argv[0], *map(str, options.corpus)], one)
        atheris.Fuzz()
        return
    rng = random.Random(options.seed)
    seeds = [path.read_bytes() for path in options.corpus]
    for _ in range(options.runs):
        content = changed(rng.choice(seeds), rng)
        try:
            one(content)
        except BaseException:
            pathlib.Path("crash.tflite").write_bytes(content)
            raise


if __name__ == "__main__":
    main()
