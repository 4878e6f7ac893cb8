"""Break a cache directory in every known way, and count wrong results.

    python tests/fuzz/run_cache_faults.py [--only=NAME;...] [--append=FILE.jsonl]

bench/results/cache_faults.jsonl has the lines that docs/reliability.md names.

One JSON line for each kind of fault: the number of cases, and of wrong results, lost entries (valid
ones that were not loaded afterwards) and exceptions among them. All three must be 0. A small tmpfs,
if root may mount one, stands in for a full disk and for one that turns read-only. It takes 15
minutes on two cores. The test suite does not run it; tests/cache has samples of the same faults.
"""

import argparse
import collections
import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jaxdelegate as jd
from jaxdelegate.cache import choices, entry, records, sources
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.maintenance import list_entries, prune, verify
from jaxdelegate.cache.store import ProgramStore
from jaxdelegate.op_lowering.options import AddOptions, FullyConnectedOptions
from jaxdelegate.testing import ModelBuilder

UNITS = 160  # weights of 100 KiB, stored in a separate file
SAMPLES = 64  # cases of faults that need a whole inference
CALLS = (
    *("open", "replace", "fsync", "fstat", "stat", "lstat", "utime", "unlink", "listdir", "preadv"),
    *("mkdir", "mknod", "fchmod"),
)


class Counts(collections.Counter[str]):
    """The counts of one kind of fault."""


def network() -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((1, UNITS), np.float32, "x"), builder.tensor((1, UNITS))
    rng = np.random.default_rng(1)
    weights = builder.constant(rng.normal(0, 1, (UNITS, UNITS)).astype(np.float32), "weights")
    builder.operator("FULLY_CONNECTED", [x, weights, -1], [y], FullyConnectedOptions())
    z = builder.tensor((1, UNITS))
    builder.operator("ADD", [y, x], [z], AddOptions())
    builder.outputs(z)
    return builder.build()


CONTENT = network()
X = np.linspace(-1, 1, UNITS, dtype=np.float32).reshape(1, UNITS)


def inference(folder: Path | None, **options: Any) -> tuple[np.ndarray, str]:
    """The model's output with a cache directory, and whether its program was loaded or stored."""
    if folder is not None:
        options["serialization_dir"] = str(folder)
    delegate = jd.JaxDelegate(platform="cpu", **options)
    interpreter = jd.Interpreter(model_content=CONTENT, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, X)
    interpreter.invoke()
    result = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    done = None if delegate.programs is None else delegate.programs.statistics
    return result, "" if done is None else "loaded" * done.loaded + "stored" * done.stored


WANT, _ = inference(None)


def check(counts: Counts, folder: Path, **options: Any) -> str:
    """Run one inference; count a wrong result, an exception, and warnings."""
    counts["cases"] += 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result, became = inference(folder, **options)
        except Exception as error:
            counts["exceptions"] += 1
            print(f"    {type(error).__name__}: {error}", file=sys.stderr)
            return "failed"
    counts["wrong_answers"] += int(not np.array_equal(result, WANT))
    counts["warnings"] += len(caught)
    counts["exceptions"] += sum(not issubclass(w.category, jd.CacheWarning) for w in caught)
    counts[became or "neither"] += 1
    return became


@contextlib.contextmanager
def filled(mode: int = 0o700) -> Iterator[Path]:
    """A directory with one program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "programs"
        path.mkdir()
        path.chmod(mode)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jd.CacheWarning)
            inference(path)
        yield path


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


# ---- damage


def read_as(path: Path, content: bytes, folder: Path) -> object:
    """Read a file's content as the cache does; raises what its readers raise."""
    key_digest = path.name.partition(".")[0]
    match path.suffix:
        case ".program":
            return entry.unpack(content)
        case ".start" | ".support":
            kind: records.Kind[Any] = (
                records.STARTS if path.suffix == ".start" else records.VERDICTS
            )
            (folder / path.name).write_bytes(content)
            os.chmod(folder / path.name, 0o600)
            key: Any = _Named(key_digest)
            text = records.read(PrivateDirectory.open(folder), key, kind.suffix)
            return None if text is None else kind.decoded(text)
        case ".choices":
            return choices._unpacked(content)
    return None


class _Named:
    def __init__(self, digest: str) -> None:
        self.digest = digest


REFUSALS = (ValueError, OSError, TypeError, LookupError, AttributeError)


def damage(changes: Callable[[bytes], Iterator[bytes]], counts: Counts) -> None:
    """Every change of every file that the readers check as a whole."""
    with filled() as folder, tempfile.TemporaryDirectory() as other:
        os.chmod(other, 0o700)
        for path in files(folder):
            if path.suffix not in (".program", ".start", ".support"):
                continue
            for content in changes(path.read_bytes()):
                counts["cases"] += 1
                try:
                    read_as(path, content, Path(other))
                    counts["wrong_answers"] += 1  # undetected damage
                except REFUSALS:
                    counts["refused"] += 1
                except Exception as error:
                    counts["exceptions"] += 1
                    print(f"    {type(error).__name__}: {error}", file=sys.stderr)


def cuts(content: bytes) -> Iterator[bytes]:
    return (content[:at] for at in range(len(content)))


def flips(content: bytes) -> Iterator[bytes]:
    """Every bit of the first 8 KiB, and of each 97th byte after that."""
    for at in itertools.chain(range(min(len(content), 8192)), range(8192, len(content), 97)):
        for bit in range(8):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            yield bytes(changed)


def truncation(counts: Counts) -> None:
    """Truncate every file that is checked as a whole at every byte, as a power cut does."""
    damage(cuts, counts)


def bit_flips(counts: Counts) -> None:
    """Flip one bit after the other."""
    damage(flips, counts)


def in_whole_runs(changed: Callable[[bytes, float], bytes], counts: Counts) -> None:
    """Flip bits of every file under interpreters; afterwards the entry is valid."""
    with filled() as folder:
        names = [path.name for path in files(folder)]
        whole = {name: (folder / name).read_bytes() for name in names}
        for name in names:
            for part in np.linspace(0, 1, SAMPLES // 8, endpoint=False):
                (folder / name).write_bytes(changed(whole[name], float(part)))
                check(counts, folder)
                counts["lost_entries"] += check(counts, folder) != "loaded"
                if name.endswith((".program", ".weights")):
                    counts["lost_entries"] += any(row.problem for row in verify(folder))


def truncated_runs(counts: Counts) -> None:
    in_whole_runs(lambda content, part: content[: int(part * len(content))], counts)


def flipped_runs(counts: Counts) -> None:
    def flip(content: bytes, part: float) -> bytes:
        at = int(part * len(content))
        return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]

    in_whole_runs(flip, counts)


# ---- disks


@contextlib.contextmanager
def mounted(size: int) -> Iterator[Path | None]:
    """A tmpfs; None if it cannot be mounted here."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", folder]
        if (
            os.geteuid() != 0
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def full_disk(counts: Counts) -> None:
    """File systems of every size from one page to the size of all files."""
    for size in range(4096, 256 * 1024, 12 * 1024):
        with mounted(size) as folder:
            if folder is None:
                counts["not_mounted"] += 1
                return
            became = check(counts, folder / "programs")
            again = check(counts, folder / "programs")
            counts["lost_entries"] += became == "stored" and again != "loaded"
            counts["left_over"] += len(list((folder / "programs").glob(".writing-*")))


def read_only_disk(counts: Counts) -> None:
    with mounted(1 << 22) as folder:
        if folder is None:
            counts["not_mounted"] += 1
            return
        check(counts, folder / "programs")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        counts["lost_entries"] += check(counts, folder / "programs") != "loaded"
        check(counts, folder / "programs", model_token="new")


@contextlib.contextmanager
def at_each_call(act: Callable[[str], None]) -> Iterator[None]:
    """Run `act` before every operating system call of the cache."""
    real = {name: getattr(os, name) for name in CALLS}

    def watched(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.startswith("jaxdelegate.cache") and not caller.endswith(".sources"):
                act(name)
            return real[name](*arguments, **named)

        return call

    for name in CALLS:
        setattr(os, name, watched(name))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


ERRORS = (errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ETIMEDOUT)


def failing_calls(counts: Counts, mode: int = 0o700, codes: Sequence[int] = ERRORS) -> None:
    """Each call in turn fails with each error that a disk has."""
    for code, token in itertools.product(codes, (None, "new")):
        for turn in range(199):
            with filled(mode) as folder:
                left = [turn]

                def act(_: str, left: list[int] = left, code: int = code) -> None:
                    left[0] -= 1
                    if left[0] == -1:
                        raise OSError(code, os.strerror(code))

                with at_each_call(act):
                    check(counts, folder, model_token=token)
                counts["lost_entries"] += check(counts, folder) != "loaded"
            if left[0] >= 0:  # there were fewer calls
                break


def failing_calls_where_all_write(counts: Counts) -> None:
    """Fail each call in a directory that others may write to, and in this user's folder in it."""
    failing_calls(counts, 0o777, ERRORS[:1])


def slow_disk(counts: Counts) -> None:
    """Each call takes 50 ms; nothing waits long."""
    with filled() as folder, at_each_call(lambda _: time.sleep(0.05)):
        counts["lost_entries"] += check(counts, folder) != "loaded"
        check(counts, folder, model_token="new")
        counts["lost_entries"] += check(counts, folder, model_token="new") != "loaded"


def vanishing(counts: Counts) -> None:
    """The whole directory disappears before each call in turn."""
    for token in (None, "new"):
        for turn in range(99):
            with filled() as folder:
                left = [turn]

                def act(_: str, left: list[int] = left, folder: Path = folder) -> None:
                    left[0] -= 1
                    if left[0] == -1:
                        shutil.rmtree(folder)

                with at_each_call(act):
                    check(counts, folder, model_token=token)
                check(counts, folder)
                counts["lost_entries"] += check(counts, folder) != "loaded"
            if left[0] >= 0:
                break


# ---- clocks, versions, other processes


def clocks(counts: Counts) -> None:
    """Files with any time stamp, and a clock that jumps between two uses."""
    real = time.time
    for jump in (0, 3600, -3600, 86400 * 4000, -86400 * 4000):
        with filled() as folder:
            for path in files(folder):
                os.utime(path, (real() + jump,) * 2)
            time.time = lambda jump=jump: real() - jump  # type: ignore[misc]
            try:
                counts["lost_entries"] += check(counts, folder) != "loaded"
                check(counts, folder, model_token="newer")
                list_entries(folder)
                rows = [row for row in list_entries(folder) if row.problem is None]
                prune(folder, max(row.nbytes + row.weight_bytes for row in rows))
                counts["lost_entries"] += len(list_entries(folder)) != 1
                counts["lost_entries"] += any(row.problem for row in verify(folder))
            finally:
                time.time = real


def versions(counts: Counts) -> None:
    """Two versions of the package take turns in one directory."""
    with filled() as folder:
        real = sources._digest

        def other(*arguments: Any) -> str:
            return "0" * 32 + real(*arguments)[32:]

        for turn in range(SAMPLES // 4):
            sources._digest = other if turn % 2 else real  # type: ignore[assignment]
            became = check(counts, folder)
            counts["lost_entries"] += became != ("stored" if turn == 1 else "loaded")
        sources._digest = real
        own = entry._VERSION
        entry._VERSION = own + 1  # entries of a later format are neither read nor removed
        check(counts, folder, model_token="later")
        entry._VERSION = own
        counts["lost_entries"] += check(counts, folder) != "loaded"


CHILD = "import runpy, sys; m = runpy.run_path(sys.argv[1]); m['child'](sys.argv[2])"


def child(folder: str) -> None:
    """The code of other processes: one inference, and its counts as a line."""
    counts = Counts()
    check(counts, Path(folder))
    print(json.dumps(counts))


def at_once(counts: Counts) -> None:
    """Four processes store the same entry at the same time."""
    for _ in range(3):
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "programs"
            command = [sys.executable, "-c", CHILD, __file__, str(folder)]
            started = [
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)
            ]
            for process in started:
                out, _ = process.communicate(timeout=600)
                counts.update(json.loads(out.splitlines()[-1]))
            counts["lost_entries"] += any(row.problem for row in verify(folder))
            counts["lost_entries"] += check(counts, folder) != "loaded"


def while_pruning(counts: Counts) -> None:
    """Inferences while another thread prunes continuously, to a size and to nothing."""
    with filled() as folder:
        is_over = threading.Event()

        def maintain() -> None:
            rng = random.Random(1)
            while not is_over.is_set():
                try:
                    prune(folder, rng.choice((0, 1 << 17, 1 << 30)))
                    list(ProgramStore(PrivateDirectory.open(folder)).entries())
                    counts["prunes"] += 1
                except Exception as error:
                    counts["exceptions"] += 1
                    print(f"    prune: {type(error).__name__}: {error}", file=sys.stderr)
                time.sleep(rng.uniform(0, 2))  # so that some entries live long enough to be loaded

        thread = threading.Thread(target=maintain)
        thread.start()
        try:
            for turn in range(SAMPLES * 2):
                check(counts, folder, model_token=str(turn % 3))
        finally:
            is_over.set()
            thread.join()
        check(counts, folder)
        counts["lost_entries"] += check(counts, folder) != "loaded"


def hostile(counts: Counts) -> None:
    """Files that others could have written are not read: links, pipes, modes, owners."""

    def another_owner(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 65534, -1)
        else:
            path.chmod(0o622)

    def link(path: Path) -> None:
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")

    def pipe(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    acts = (another_owner, link, pipe, lambda p: p.chmod(0o666), lambda p: p.chmod(0o620))
    for act in acts:
        for suffix in (".program", ".weights", ".start", ".support"):
            with filled() as folder:
                for path in files(folder):
                    if path.suffix == suffix:
                        act(path)
                became = check(counts, folder)
                if suffix in (".program", ".weights"):
                    counts["wrong_answers"] += became == "loaded"  # others' machine code


FAULTS: dict[str, Callable[[Counts], None]] = {
    "truncation at every byte": truncation,
    "truncation, whole runs": truncated_runs,
    "bit flips": bit_flips,
    "bit flips, whole runs": flipped_runs,
    "full disk": full_disk,
    "read-only disk": read_only_disk,
    "failing calls": failing_calls,
    "failing calls, shared directory": failing_calls_where_all_write,
    "slow disk": slow_disk,
    "directory vanishes": vanishing,
    "clocks": clocks,
    "two versions": versions,
    "four processes at once": at_once,
    "pruned meanwhile": while_pruning,
    "files of others": hostile,
}
COUNTED = ("cases", "wrong_answers", "lost_entries", "exceptions")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of faults, with semicolons")
    parser.add_argument("--append", type=Path, help="a file for the JSON lines")
    options = parser.parse_args()
    names = options.only.split(";") if options.only else list(FAULTS)
    failed = 0
    for name in names:
        counts = Counts(dict.fromkeys(COUNTED, 0))
        begin = time.monotonic()
        FAULTS[name](counts)
        row = {"fault": name, **counts, "seconds": round(time.monotonic() - begin, 1)}
        row |= {"jaxdelegate": jd.__version__, "format": entry._VERSION}
        failed += sum(counts[kind] for kind in COUNTED[1:])
        print(json.dumps(row), flush=True)
        if options.append is not None:
            with options.append.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
