"""Compile the kernels with the headers of several jaxlib releases: a part of `make lint`.

These are the oldest release that pyproject.toml allows, one in the middle, and the newest that pip
finds. Their headers stay in build/headers. The compiler only checks, and only what has changed
since it found no error.
"""

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "build/headers"
MIDDLE = "0.11.2"
FLAGS = ("-fsyntax-only", "-std=c++2a", "-fno-rtti")
# The newest jaxlib may not support the Python that runs this.
WHEELS = ("--no-deps", "--only-binary=:all:", "--python-version=3.13", "--quiet")


def main(kernels: Path = ROOT / "jaxdelegate/kernels", folder: Path = HEADERS) -> int:
    """Print the compilers' errors; return 1 if there are any, or if pip fails."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if platform.machine() != "x86_64" or shutil.which(compiler[0]) is None:
        warn(
            "SKIPPED: kernels with the headers of several jaxlib releases. It takes an x86-64 "
            f"processor and the compiler {compiler[0]} (on Debian: apt-get install g++)"
        )
        return 0
    try:
        places = {version: headers(version, folder) for version in releases(folder)}
    except subprocess.CalledProcessError as error:
        warn(f"the headers of jaxlib come from pip, which failed: {shlex.join(error.cmd)}")
        return 1
    return max([checked(compiler, kernels, *release) for release in places.items()])


def releases(folder: Path) -> list[str]:
    """The oldest, a middle and the newest release within pyproject.toml's range."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = [need for need in project["dependencies"] if need.startswith("jaxlib")]
    oldest = wanted.removeprefix("jaxlib>=").partition(",")[0]
    return [oldest, MIDDLE, newest(wanted, folder)]


def newest(wanted: str, folder: Path) -> str:
    """The version that pip would install; without a network, the newest one in the folder."""
    # No wheel is downloaded; a target makes pip accept those of another Python.
    dry_run = ("--dry-run", "--ignore-installed", "--target=.", "--report=-")
    try:
        return json.loads(pip("install", *dry_run, wanted))["install"][0]["metadata"]["version"]
    except subprocess.CalledProcessError:
        known = sorted(p.name for p in folder.glob("[0-9]*"))  # 0.9 is older than the range
        if not known:
            raise
        warn(f"SKIPPED: pip did not find the newest jaxlib; {known[-1]} is checked instead")
        return known[-1]


def headers(version: str, folder: Path) -> Path:
    """The folder of a release's headers, which are downloaded the first time."""
    place = folder / version
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            pip("download", f"--dest={scratch}", f"jaxlib=={version}")
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if n.startswith("jaxlib/include/")]
                archive.extractall(f"{scratch}/extracted", names)
            Path(scratch, "extracted").rename(place)  # complete, or absent
    return place


def pip(command: str, *arguments: str) -> str:
    """What pip prints."""
    whole = [sys.executable, "-m", "pip", command, *WHEELS, *arguments]
    return subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout


def checked(compiler: list[str], kernels: Path, version: str, place: Path) -> int:
    """Check all files with a release's headers, two at a time; return 1 if there are errors."""
    sources = sorted(kernels.glob("*.cc"))
    command = [*compiler, *FLAGS, f"-I{place}/jaxlib/include"]
    found, stamp = state(command, kernels), place / "without_errors"
    if stamp.exists() and stamp.read_text() == found:
        print(f"kernels with jaxlib {version}: unchanged")
        return 0
    with ThreadPoolExecutor(2) as pool:
        failures = list(filter(None, pool.map(lambda source: errors(command, source), sources)))
    for text in failures:
        warn(f"kernels with jaxlib {version}:\n{text}")
    print(f"kernels with jaxlib {version}: {len(failures)} of {len(sources)} files have errors")
    if not failures:
        stamp.write_text(found)
    return 1 if failures else 0


def state(command: list[str], kernels: Path) -> str:
    """A digest of the sources, the compiler and its arguments."""
    version = subprocess.run([*command, "--version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(repr(command).encode() + version)
    for path in sorted(kernels.iterdir()):
        if path.suffix in (".cc", ".h", ".inc"):
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def errors(command: list[str], source: Path) -> str:
    """What the compiler prints if it refuses a file."""
    done = subprocess.run([*command, source], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
