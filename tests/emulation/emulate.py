"""Run the package on emulated x86-64 processors: `make emulate`, with qemu-user.

It checks which instruction set the native kernels choose, and that the demo agrees with the numpy
reference. qemu-user does not emulate AVX-512.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
QEMU = "qemu-x86_64"

# Processors and the kernels' choices. jaxlib requires AVX, so no demo runs on a Nehalem.
CHOSEN = {"Nehalem": "none", "SandyBridge": "none", "Haswell-noTSX": "avx2", "EPYC-Rome": "avx2"}
DEMOS = {
    "SandyBridge": "Native kernels: none, XLA computes all: this processor lacks AVX2 or FMA.",
    "Haswell-noTSX": "Native kernels: avx2.",
}

_ASK = """
import ctypes, sys
ask = ctypes.CDLL(sys.argv[1]).jaxdelegate_instruction_set
ask.restype = ctypes.c_char_p
print((ask() or b"none").decode())
"""


def main() -> int:
    """Print a line for each run; return 1 if one of them is wrong."""
    if shutil.which(QEMU) is None:
        print(f"{QEMU} is not installed; on Debian: apt-get install qemu-user", file=sys.stderr)
        return 1
    library = ROOT / "jaxdelegate/kernels/libjaxdelegate_kernels.so"
    if not library.exists():
        print(f"{library.relative_to(ROOT)} was not built", file=sys.stderr)
        return 1
    rows = [chosen(processor, library) for processor in CHOSEN]
    rows += [demo(processor) for processor in DEMOS]
    return 0 if all(rows) else 1


def chosen(processor: str, library: Path) -> bool:
    """Whether the library makes the expected choice."""
    done = emulated(processor, "-c", _ASK, str(library))
    is_right = done.stdout.strip() == CHOSEN[processor] and done.returncode == 0
    print(f"{processor}: instruction set {done.stdout.strip() or ended(done)}", flush=True)
    return is_right or failed(f"expected {CHOSEN[processor]}", done)


def demo(processor: str) -> bool:
    """Whether the demo agrees with the reference and uses the expected kernels."""
    start = time.monotonic()
    small = ("--size=64", "--width=0.25", "--num_runs=1")
    done = emulated(processor, "-m", "jaxdelegate", "demo", *small)
    lines = done.stdout.splitlines()
    agrees = done.returncode == 0 and any(line.startswith("outputs agree") for line in lines)
    print(f"{processor}: demo {ended(done)} after {time.monotonic() - start:.0f} s", flush=True)
    return (agrees and DEMOS[processor] in lines) or failed(f"expected {DEMOS[processor]!r}", done)


def emulated(processor: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python on a processor, and once more if a signal kills it.

    The demo was killed once in 20 runs of the same commit, while several threads compiled. An
    instruction that the processor lacks kills it every time.
    """
    done = run(processor, *arguments)
    if killed_by(done):
        failed(f"{ended(done)}; once more", done)
        done = run(processor, *arguments)
    return done


def run(processor: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python on a processor; its real executable, since qemu does not follow wrappers."""
    found = (ROOT, *map(sysconfig.get_path, ("purelib", "platlib")))
    paths = os.pathsep.join(dict.fromkeys(map(str, found)))
    variables = {"PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1", "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [QEMU, "-cpu", processor, os.path.realpath(sys.executable), *arguments],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def killed_by(done: subprocess.CompletedProcess[str]) -> int:
    """The number of the signal that killed a process; 0: none."""
    code = done.returncode
    return -code if code < 0 else max(code - 128, 0)


def ended(done: subprocess.CompletedProcess[str]) -> str:
    """A process's exit status in words."""
    if signal := killed_by(done):
        return f"killed by signal {signal}"
    return f"exit {done.returncode}" if done.returncode else "passed"


def failed(wanted: str, done: subprocess.CompletedProcess[str]) -> bool:
    """Print a failure with the process's output; return False."""
    print(f"  {wanted}; output:\n{done.stdout}{done.stderr}", file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(main())
