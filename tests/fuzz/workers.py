"""Processes that run damaged models under limits of memory and time.

A worker runs many models, and is replaced when it dies. It returns an `Outcome` for each; if it
dies or does not finish, its owner creates the outcome.
"""

import contextlib
import dataclasses
import faulthandler
import gc
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate.model.sections import is_bundle

RAN, REFUSED, ERROR, MEMORY, TIME, DIED = "ran", "refused", "error", "memory", "time limit", "died"
STOPPED = "stopped"  # by the option `timeout`, as documented for infinite loops
BEFORE = "before damage"  # the undamaged model takes too long or kills the process, too
SIDES = ("reference", "delegate", "integer", "litert", "bundle")
_REFUSALS = {"litert": (RuntimeError, ValueError)}  # besides JaxDelegateError
SECONDS = {"reference": 10.0, "delegate": 60.0, "integer": 60.0, "litert": 10.0, "bundle": 10.0}
MEMORY_BYTES = 6 << 30  # in addition to what the process takes when it starts
_PATIENCE = 6  # wall time over processor time, for a process that waits
_START_SECONDS = 120
_MODELS = 300  # per process: compiled programs accumulate in it
_FILLED = 1 << 24  # larger inputs stay zeros


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one model.

    Attributes:
        kind: RAN, REFUSED, STOPPED, ERROR, MEMORY, TIME, DIED or BEFORE.
        name: of the exception's class, or of the signal that killed the process.
        text: the exception's message.
        stack: its traceback, or the last output of a dead process.
        peak: the most additional memory since the process's start, bytes.
    """

    kind: str
    name: str = ""
    text: str = ""
    stack: str = ""
    peak: int = 0

    @property
    def label(self) -> str:
        """The name that is counted: the kind, with the class of a refusal or an earlier failure."""
        return f"{self.kind}: {self.name}" if self.kind in (REFUSED, BEFORE) else self.kind

    @property
    def is_finding(self) -> bool:
        """Whether no file may have this outcome. A LoweringError is a bug of ours."""
        return self.kind not in (RAN, REFUSED, STOPPED, BEFORE) or self.name == "LoweringError"


class Worker:
    """Owns a process that runs models on one side, and replaces it when it dies."""

    def __init__(self, side: str, kernels: Path | None = None, memory: int = MEMORY_BYTES) -> None:
        """Create a worker, whose process starts with the first model.

        Args:
            side: one of SIDES.
            kernels: native kernels in place of the built ones.
            memory: additional memory that the process may take, bytes; 0: no limit.
        """
        self.side, self._kernels, self._memory = side, kernels, memory
        self._log = Path(tempfile.mkstemp(prefix="mutations-", suffix=".log")[1])
        self._process: Any = None
        self._pipe: multiprocessing.connection.Connection | None = None
        self._done = 0

    def run(self, content: bytes, seed: int, *, timeout: bool = False) -> Outcome:
        """Read, allocate, invoke, and get all outputs.

        `timeout`: interpreters get half of the seconds as their option of this name. Without it, a
        delegate takes loops of unknown length, which cannot be stopped.
        """
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        try:
            seconds = SECONDS[self.side] / 2 if timeout else None
            self._pipe.send((content, seed, seconds))
            if not self._responds():
                self._kill()
                return Outcome(TIME, f"{SECONDS[self.side]:g} s", stack=self._written())
            outcome: Outcome = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            self._kill()
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            return Outcome(DIED, name, stack=self._written())
        self._done += 1
        if self._done >= _MODELS:
            self._kill()
        return outcome

    def _responds(self) -> bool:
        """Whether it responds in its seconds of processor time, as the machine may be shared."""
        assert self._pipe is not None
        start, seconds = self._process_seconds(), SECONDS[self.side]
        end = time.monotonic() + _PATIENCE * seconds
        while not self._pipe.poll(0.2):
            if self._process_seconds() - start > seconds or time.monotonic() > end:
                return False
        return True

    def _process_seconds(self) -> float:
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it is dead: the pipe reports that
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process."""
        self._kill()
        self._log.unlink(missing_ok=True)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self.side, self._log, self._kernels, self._memory)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(_START_SECONDS) or self._pipe.recv() != "ready":
            raise RuntimeError(f"a worker did not start: {self._written()}")
        self._done = 0

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _written(self) -> str:
        return self._log.read_text("utf-8", "replace")[-4000:]


# ---- inside the process


def _serve(
    pipe: multiprocessing.connection.Connection,
    side: str,
    log: Path,
    kernels: Path | None,
    memory: int,
) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF)
    run = {
        "reference": _interpreter,
        "delegate": _delegated,
        "integer": _delegated_integers,
        "litert": _litert,
        "bundle": _bundle,
    }[side]
    if kernels is not None:
        from jaxdelegate.kernels import library

        library.LIBRARY = kernels
    run(_smallest(), 0, None)  # imports everything
    gc.freeze()  # so that collections after each model skip these objects
    if memory:
        limit = _status("VmSize") + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    start = _status("VmRSS")
    pipe.send("ready")
    while True:
        try:
            content, seed, timeout = pipe.recv()
        except EOFError:
            return
        os.ftruncate(descriptor, 0)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        signal.setitimer(signal.ITIMER_PROF, SECONDS[side] * 0.9)  # shows where the time is spent
        outcome = _tried(run, content, seed, timeout, _REFUSALS.get(side, ()))
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.collect()
        pipe.send(dataclasses.replace(outcome, peak=max(0, _status("VmHWM") - start)))


def _tried(
    run: Any,
    content: bytes,
    seed: int,
    timeout: float | None,
    refusals: tuple[type[Exception], ...],
) -> Outcome:
    from jaxdelegate.errors import JaxDelegateError, StoppedError

    try:
        run(content, seed, timeout)
    except StoppedError as error:
        return Outcome(STOPPED, "StoppedError", str(error))
    except JaxDelegateError as error:
        stack = traceback.format_exc() if type(error).__name__ == "LoweringError" else ""
        return Outcome(REFUSED, type(error).__name__, str(error), stack)
    except refusals as error:
        return Outcome(REFUSED, type(error).__name__, str(error))
    except MemoryError as error:
        return Outcome(MEMORY, "MemoryError", str(error), traceback.format_exc())
    except Exception as error:
        return Outcome(ERROR, type(error).__name__, str(error), traceback.format_exc())
    return Outcome(RAN)


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) << 10


def _smallest() -> bytes:
    from jaxdelegate.testing import ModelBuilder

    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,))
    builder.operator("ABS", [x], [y])
    builder.outputs(y)
    return builder.build()


def _interpreter(content: bytes, seed: int, timeout: float | None) -> None:
    from jaxdelegate.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, timeout=timeout)
    _use(interpreter, seed)
    interpreter.get_tensor_details()


def _delegated_integers(content: bytes, seed: int, timeout: float | None) -> None:
    _delegated(content, seed, timeout, quant_mode="integer")


def _delegated(content: bytes, seed: int, timeout: float | None, **options: Any) -> None:
    from jaxdelegate import Interpreter, JaxDelegate

    delegates = [JaxDelegate(**options)]
    try:
        _use(
            Interpreter(model_content=content, experimental_delegates=delegates, timeout=timeout),
            seed,
        )
    finally:
        _check_rules(delegates[0])


def _check_rules(delegate: Any) -> None:
    """Report a rule that raises instead of giving a reason, although the delegate continues."""
    from jaxdelegate.lowering.legality import RULE_RAISED

    with contextlib.suppress(LookupError):  # no rule was called
        for node in delegate.report().left:
            if RULE_RAISED in (node.reason or ""):
                raise AssertionError(f"{node.op}: {node.reason}")


def _litert(content: bytes, seed: int, _timeout: float | None) -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=content,
        num_threads=1,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
    )
    _use(interpreter, seed)


def _bundle(content: bytes, _seed: int, _timeout: float | None) -> None:
    """Read all of a bundle; raise the first refusal, after the other parts have been read."""
    from jaxdelegate.bundles.bundle import Bundle, open_bundle
    from jaxdelegate.bundles.description import describe
    from jaxdelegate.bundles.tokenizers import TYPES, open_tokenizer
    from jaxdelegate.errors import JaxDelegateError
    from jaxdelegate.model.open_models import open_model
    from jaxdelegate.model.sections import EXECUTOR_METADATA, LLM_METADATA

    def use_tokenizer(bundle: Bundle, name: str, kind: str) -> None:
        tokenizer = open_tokenizer(kind, bundle.data(name), name)
        ids = tokenizer.encode("the cat sat on a m\xe4t <eos>")
        tokenizer.decode(ids)
        for token in ids:
            tokenizer.token_id(tokenizer.token(token))

    def readers(bundle: Bundle) -> Iterator[Callable[[], object]]:
        for section in bundle.sections:
            yield partial(bundle.data, section.name)
            if section.type in TYPES:
                yield partial(use_tokenizer, bundle, section.name, section.type)
            if section.type == LLM_METADATA:
                yield lambda: bundle.metadata
            if section.type == EXECUTOR_METADATA:
                yield bundle.executor_metadata
        for name in bundle.models:
            yield partial(lambda name: open_model(bundle.models[name]), name)
        yield partial(describe, bundle)

    refusals = []
    if is_bundle(content[:8]):
        for reader in readers(open_bundle(content)):
            try:
                reader()
            except JaxDelegateError as error:
                refusals.append(error)
    else:
        open_model(content)
    if refusals:
        raise refusals[0]


def _use(interpreter: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    interpreter.allocate_tensors()
    for details in interpreter.get_input_details():
        value = _input(details, rng)
        if value is not None:
            interpreter.set_tensor(details["index"], value)
    interpreter.invoke()
    for details in interpreter.get_output_details():
        with contextlib.suppress(ValueError):  # an output may be a variable without a value
            interpreter.get_tensor(details["index"])
    interpreter.get_signature_list()


def _input(details: dict[str, Any], rng: np.random.Generator) -> np.ndarray | None:
    """A value for an input; None leaves it unset."""
    shape, dtype = tuple(details["shape"]), np.dtype(details["dtype"])
    count = int(np.prod(shape, dtype=np.float64))
    if not 0 < count <= _FILLED:
        return None
    if dtype.kind in "SOU":
        return np.full(shape, b"a", object)
    if dtype.kind not in "fiub":
        return None
    few = rng.normal(size=4096) if dtype.kind == "f" else rng.integers(0, 4, 4096)
    return np.resize(few.astype(dtype), shape)


if __name__ == "__main__":
    sys.exit("python -m tests.fuzz.run_mutations")
