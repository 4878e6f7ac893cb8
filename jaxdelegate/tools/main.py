"""The console script: picks the tool, parses its flags, turns errors into an exit code."""

import difflib
import importlib
import sys
from collections.abc import Sequence

from absl import flags

from jaxdelegate.errors import JaxDelegateError

# Tool -> what it does. Each is a module of this package with `define` and `run`.
TOOLS = {
    "demo": "run MobileNet v1 on XLA and on the numpy reference, and compare",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxdelegate <tool> --flags`; returns the exit code, 1 for what the user can mend."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if argv else 1
    if argv[0] not in TOOLS:
        close = difflib.get_close_matches(argv[0], TOOLS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; tools: {', '.join(TOOLS)}"
        return _fail(f"unknown tool {argv[0]!r}{hint}")
    tool = importlib.import_module(f"jaxdelegate.tools.{argv[0]}")
    values = flags.FlagValues()
    flags.DEFINE_bool("help", False, "Show the tool's flags.", flag_values=values)
    tool.define(values)
    try:
        rest = values([f"jaxdelegate {argv[0]}", *argv[1:]])[1:]
        if rest:
            return _fail(f"unexpected argument {rest[0]!r}; flags begin with --")
        if values.help:
            print(f"jaxdelegate {argv[0]}: {TOOLS[argv[0]]}\n{values.get_help()}")
            return 0
        return int(tool.run(values))
    except (flags.Error, JaxDelegateError, OSError) as error:
        return _fail(str(error))


def _fail(message: str) -> int:
    print(f"jaxdelegate: {message}", file=sys.stderr)
    return 1


def _usage() -> str:
    rows = "\n".join(f"  {name:12s} {what}" for name, what in TOOLS.items())
    return (
        f"usage: jaxdelegate <tool> [--flags]\n\n{rows}\n\n"
        "`jaxdelegate <tool> --help` lists a tool's flags."
    )
