"""The console script: picks the tool, parses its flags, turns errors into an exit code."""

import contextlib
import difflib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from jaxdelegate.errors import JaxDelegateError, OptionError
from jaxdelegate.options import NATIVE_KERNELS
from jaxdelegate.report.tables import table
from jaxdelegate.text import wrapped
from jaxdelegate.tools import command_line, help_text, terminal
from jaxdelegate.version import __version__

# Tool -> what it does. Each is a module of this package, as command_line.py describes.
TOOLS = {
    "benchmark_model": "latency, memory and operator times of a model",
    "benchmark_performance_options": "platforms, dtypes and threads for a model, ranked",
    "demo": "compare XLA with the numpy reference on MobileNet v1",
    "analyze": "say what a model holds and costs, what is delegated and why not; give advice",
    "lm": "talk to the language model of a bundle, measure it, or describe the bundle",
    "inference_diff": "compare a delegate's outputs and latency with a reference, by layer too",
    "check_precision": "say which operators float16 or bfloat16 would make wrong",
    "sensitivity": "rank operators by what quantizing them alone does to the output",
    "bisect": "find the operators that make an output wrong when they are delegated",
    "compile": "compile a model's programs ahead of time into --jax_serialization_dir",
    "cache": "list, verify or prune stored programs: of bundles, or in --jax_serialization_dir",
    "serve": "serve models over HTTP and gRPC: Open Inference Protocol v2, dynamic batching",
    "imagenet_eval": "measure an image classifier's top-k accuracy on a validation set",
    "coco_eval": "measure an object detector's average precision on annotated images",
}
_HELP = frozenset(("-h", "-help", "--help", "--help=true"))
_FULL_HELP = frozenset(("-helpfull", "--helpfull", "--helpfull=true"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxdelegate <tool> --flags`; returns the exit code, 1 for a user error."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(argv)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for unflushed output
        return 141  # as shells report SIGPIPE
    except (flags.Error, JaxDelegateError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130  # as shells report SIGINT


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] in (*_HELP, *_FULL_HELP, "help"):
        print(_usage(), flush=True)
        return 0 if argv else 1
    if argv[0] in ("--version", "-version", "version"):
        print(_versions(), flush=True)
        return 0
    if argv[0] not in TOOLS:
        close = difflib.get_close_matches(argv[0], TOOLS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; tools: {', '.join(TOOLS)}"
        return _fail(f"unknown tool {argv[0]!r}{hint}")
    with terminal.escaped_output(), terminal.logged_commands():
        code = _run(argv[0], argv[1:])
        sys.stdout.flush()  # so that a closed pipe is an error here, not at exit
    return code


def _run(name: str, arguments: Sequence[str]) -> int:
    tool = importlib.import_module(f"jaxdelegate.tools.{name}")
    values, actions = command_line.declared(tool), getattr(tool, "ACTIONS", ())
    for options, text in ((_HELP, help_text.brief), (_FULL_HELP, help_text.full)):
        if not options.isdisjoint(arguments):
            print(text(name, TOOLS[name], values, actions))
            return 0
    values.set_gnu_getopt(True)  # the model may be anywhere among flags
    try:
        words = values([f"jaxdelegate {name}", *command_line.with_underscores(arguments)])[1:]
    except flags.UnrecognizedFlagError as error:
        raise OptionError(_with_suggestion(error, list(values))) from error
    except ValueError as error:  # --noflag=value: absl raises no error of its classes
        raise OptionError(str(error)) from error
    leading, rest = (words[:1], words[1:]) if actions else ([], words)
    more = [_action(name, actions, leading)] if actions else []
    rest = command_line.with_model(values, rest)
    if rest:
        return _fail(f"unexpected argument {rest[0]!r}; flags begin with --")
    command_line.check(tool, values)
    kernels = "jax_native_kernels"
    with _native_kernels(values[kernels].value if kernels in values else None):
        return int(tool.run(values, *more))


@contextlib.contextmanager
def _native_kernels(enabled: bool | None) -> Iterator[None]:
    """Pass the flag to all delegates, and to child processes, in the environment."""
    before = os.environ.get(NATIVE_KERNELS)
    if enabled is not None:
        os.environ[NATIVE_KERNELS] = str(int(enabled))
    try:
        yield
    finally:
        if before is not None:
            os.environ[NATIVE_KERNELS] = before
        elif enabled is not None:
            del os.environ[NATIVE_KERNELS]


def _action(name: str, actions: Sequence[str], words: Sequence[str]) -> str:
    if len(words) != 1 or words[0] not in actions:
        got = " ".join(words) or "none"
        raise OptionError(f"{name}: expected one of {', '.join(actions)}, got {got}")
    return words[0]


def _with_suggestion(error: Any, known: Sequence[str]) -> str:
    """The message; absl compares prefixes only, so it misses a letter left out early."""
    close = difflib.get_close_matches(error.flagname, known, n=3)
    if "Did you mean" in str(error) or not close:
        return str(error)
    return f"{error}. Did you mean: {', '.join(close)} ?"


def _versions() -> str:
    packages = ("jax", "jaxlib", "numpy", "ai-edge-litert")
    others = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    python = ".".join(map(str, sys.version_info[:3]))
    return f"jaxdelegate {__version__} ({others}, Python {python})"


def _fail(message: str) -> int:
    text = f"jaxdelegate: {terminal.escaped(message)}"
    # Files and other programs get one line.
    print(wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr)
    return 1


def _usage() -> str:
    width = max(map(len, TOOLS))
    rows = "\n".join(table([(f"  {name:{width}s}", what) for name, what in TOOLS.items()]))
    return (
        f"usage: jaxdelegate <tool> [MODEL.tflite] [--flags]\n\n{rows}\n\n"
        "`jaxdelegate <tool> --help` shows the common flags, `--helpfull` all of them;\n"
        "`jaxdelegate --version`."
    )
