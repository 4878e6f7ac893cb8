"""The environment of child processes whose tests do not depend on XLA's optimizations."""

import os

from jaxdelegate.testing.case import COMPILER_OPTIONS

# As conftest.py compiles; a process ends if its XLA does not know a flag.
_FLAGS = [f"--{name}={value}" for name, value in COMPILER_OPTIONS.items()]


def compiling_quickly() -> dict[str, str]:
    """This process's environment, in which XLA compiles with few optimizations.

    Compiling takes most of the time of such processes, and most of it is LLVM's optimizations.
    """
    given = os.environ.get("XLA_FLAGS", "").split()
    return {**os.environ, "XLA_FLAGS": " ".join([*(f for f in _FLAGS if f not in given), *given])}
