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
from jaxdelegate.tools import help_text, model_flags, terminal
from jaxdelegate.version import __version__

# Tool -> what it does. Each is a module of this package with `define` and `run`.
TOOLS = {
    "benchmark_model": "latency, memory, energy and operator times of a model",
    "benchmark_performance_options": "platforms, dtypes and threads for a model, ranked",
    "demo": "compare XLA with the numpy reference on MobileNet v1; --web: more, in a browser",
    "analyze": "say what a model holds and costs, what is delegated and why not; give advice",
    "inference_diff": "compare a delegate's outputs and latency with a reference, by layer too",
    "check_precision": "say which operators float16 or bfloat16 would make wrong",
    "sensitivity": "rank operators by what quantizing them alone does to the output",
    "bisect": "find the operators that make an output wrong when they are delegated",
    "plot": "draw the tools' JSON results: latency, batches, roofline, errors by layer",
    "compile": "compile a model's programs ahead of time into --jax_serialization_dir",
    "cache": "list, verify or prune what lies in --jax_serialization_dir",
    "serve": "answer requests over HTTP and gRPC: Open Inference Protocol v2, dynamic batching",
    "imagenet_eval": "measure an image classifier's top-k accuracy on a validation set",
    "coco_eval": "measure an object detector's average precision on annotated images",
}
_HELP = frozenset(("-h", "-help", "--help", "--help=true"))
_FULL_HELP = frozenset(("-helpfull", "--helpfull", "--helpfull=true"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxdelegate <tool> --flags`; returns the exit code, 1 for what the user can mend."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _asked(argv)
    except BrokenPipeError:  # whoever read our lines has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is not flushed
        return 141  # as shells report SIGPIPE
    except (flags.Error, JaxDelegateError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130  # as shells report SIGINT


def _asked(argv: Sequence[str]) -> int:
    answer = _answer(argv)
    if answer is not None:
        print(answer, flush=True)
        return 0 if argv else 1
    if argv[0] not in TOOLS:
        close = difflib.get_close_matches(argv[0], TOOLS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; tools: {', '.join(TOOLS)}"
        return _fail(f"unknown tool {argv[0]!r}{hint}")
    with terminal.shown_output():
        code = _run(argv[0], argv[1:])
        sys.stdout.flush()  # here, and not when Python ends
    return code


def _answer(argv: Sequence[str]) -> str | None:
    """What is printed where no tool is named; None: one is."""
    if not argv or argv[0] in (*_HELP, *_FULL_HELP, "help"):
        return _usage()
    return _versions() if argv[0] in ("--version", "-version", "version") else None


def _run(name: str, arguments: Sequence[str]) -> int:
    tool = importlib.import_module(f"jaxdelegate.tools.{name}")
    values = flags.FlagValues()
    flags.DEFINE_bool(
        "help", False, "Show the flags that most need.", short_name="h", flag_values=values
    )
    flags.DEFINE_bool("helpfull", False, "Show all of the tool's flags.", flag_values=values)
    tool.define(values)
    model_flags.define_alias(values)
    actions = getattr(tool, "ACTIONS", ())  # words of which one says what the tool is to do
    for asked, text in ((_HELP, help_text.brief), (_FULL_HELP, help_text.full)):
        if not asked.isdisjoint(arguments):  # before a flag that the tool requires is missed
            print(text(name, TOOLS[name], values, actions))
            return 0
    if not actions:
        arguments = model_flags.with_flag(values, arguments)
    try:
        rest = values([f"jaxdelegate {name}", *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        raise OptionError(_with_suggestion(error, list(values))) from error
    except ValueError as error:  # --noflag=value: not one of absl's own errors
        raise OptionError(str(error)) from error
    model_flags.check(values)
    if rest and not actions:
        return _fail(f"unexpected argument {rest[0]!r}; flags begin with --")
    more = [_action(name, actions, rest)] if actions else []
    kernels = "jax_native_kernels"
    with _native_kernels(values[kernels].value if kernels in values else None):
        return int(tool.run(values, *more))


@contextlib.contextmanager
def _native_kernels(asked: bool | None) -> Iterator[None]:
    """Delegates of the tool, and of processes that it starts, find the flag in the environment."""
    before = os.environ.get(NATIVE_KERNELS)
    if asked is not None:
        os.environ[NATIVE_KERNELS] = str(int(asked))
    try:
        yield
    finally:
        if before is not None:
            os.environ[NATIVE_KERNELS] = before
        elif asked is not None:
            del os.environ[NATIVE_KERNELS]


def _action(name: str, actions: Sequence[str], given: Sequence[str]) -> str:
    if len(given) != 1 or given[0] not in actions:
        got = " ".join(given) or "none"
        raise OptionError(f"{name}: want one of {', '.join(actions)}, got {got}")
    return given[0]


def _with_suggestion(error: Any, known: Sequence[str]) -> str:
    """The message; absl compares beginnings only and so misses a letter left out early."""
    close = difflib.get_close_matches(error.flagname, known, n=3)
    if "Did you mean" in str(error) or not close:
        return str(error)
    return f"{error}. Did you mean: {', '.join(close)} ?"


def _versions() -> str:
    """The version of this package and of those that decide what it computes."""
    packages = ("jax", "jaxlib", "numpy", "ai-edge-litert")
    others = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    python = ".".join(map(str, sys.version_info[:3]))
    return f"jaxdelegate {__version__} ({others}, Python {python})"


def _fail(message: str) -> int:
    print(f"jaxdelegate: {terminal.shown(message)}", file=sys.stderr)
    return 1


def _usage() -> str:
    width = max(map(len, TOOLS))
    rows = "\n".join(f"  {name:{width}s}  {what}" for name, what in TOOLS.items())
    return (
        f"usage: jaxdelegate <tool> [MODEL.tflite] [--flags]\n\n{rows}\n\n"
        "`jaxdelegate <tool> --help` shows the flags that most need, `--helpfull` all of them; "
        "`jaxdelegate --version`."
    )
