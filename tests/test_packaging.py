"""The installed files are those in git, with and without symbolic links in the checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import jaxdelegate as jd

ROOT = Path(__file__).parents[1]
SHIPPED = (".py", ".css", ".html", ".js", ".tflite")
LINKS = ("op_lowering", "quant")
# Other files in a source distribution; the build creates PKG-INFO and setup.cfg.
BUILD_FILES = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md")
BUILD_FILES += ("pyproject.toml", "setup.py")
NO_COMPILER = {"CC": "no-compiler", "CXX": "no-compiler"}
# It leaves empty files: `make wheel` compiles.
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
: > "$2"
"""
LIBRARIES = {  # with the compiler of each
    "litert/libjaxdelegate.so": "cc",
    "litert/libLiteRtGpuAccelerator.so": "cc",
    "kernels/libjaxdelegate_kernels.so": "c++",
}


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")


def installed_name(path: str) -> str | None:
    """The path of a tracked file in the wheel; None if the wheel does not have it."""
    top, _, rest = path.partition("/")
    if top in LINKS and rest.endswith(".py"):
        return f"jaxdelegate/{path}"
    if top == "jaxdelegate" and (rest == "py.typed" or Path(rest).suffix in SHIPPED):
        return path
    return None


def record_name(library: str) -> str:
    """The file that says why a library was not built."""
    return library.removesuffix(".so") + ".not_built.txt"


def checkout(folder: Path, *, links: bool = True) -> None:
    """A copy of the files in git, without build results."""
    for name in filter(None, tracked()):
        path, copy = ROOT / name, folder / name
        if path.is_symlink():
            copy.parent.mkdir(parents=True, exist_ok=True)
            # Without core.symlinks, git writes a text file with the link's target.
            copy.symlink_to(path.readlink()) if links else copy.write_text(str(path.readlink()))
        elif path.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def built(kind: str, source: Path, compilers: Mapping[str, str] = NO_COMPILER) -> Path:
    """The `--wheel` or `--sdist` of a checkout."""
    command = [sys.executable, "-m", "build", kind, "--outdir", source / "dist", source]
    environment = {**os.environ, **compilers}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    (path,) = (source / "dist").iterdir()
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "links",
    [
        pytest.param(True, id="symlinks"),
        pytest.param(False, id="no-symlinks", marks=pytest.mark.exhaustive),
    ],
)
def test_the_wheel_holds_every_module(tmp_path: Path, links: bool) -> None:
    source = tmp_path / "source"
    checkout(source, links=links)
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    compilers = dict.fromkeys(("CC", "CXX"), str(compiler)) if links else NO_COMPILER
    wheel = built("--wheel", source, compilers)
    inside = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    libraries = {f"jaxdelegate/{name}" for name in LIBRARIES}
    made = libraries if links else set(map(record_name, libraries))
    assert inside == set(filter(None, map(installed_name, tracked()))) | made
    assert "-py3-none-" in wheel.name  # the libraries do not depend on a Python version
    assert ("-0.without_kernels-" in wheel.name) == (not links)


@pytest.mark.slow
def test_pip_shows_that_kernels_are_missing(tmp_path: Path) -> None:
    """pip hides the output of a build that succeeds, but not the name of its wheel."""
    checkout(tmp_path / "source")
    place = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", place]
    done = subprocess.run(
        [*install, tmp_path / "source"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | NO_COMPILER,
    )
    assert re.search(r"Created wheel for jaxdelegate: .*-0\.without_kernels-", done.stdout)
    for name in LIBRARIES:
        assert (
            "compiler named no-compiler" in (place / "jaxdelegate" / record_name(name)).read_text()
        )


@pytest.mark.exhaustive
def test_an_editable_install_is_found_next_to_the_clone(tmp_path: Path) -> None:
    """In the parent folder of a clone whose folder has the package's name."""
    clone = tmp_path / "jaxdelegate"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", clone]
    subprocess.run(install, check=True, capture_output=True, env=os.environ | NO_COMPILER)
    code = "import jaxdelegate; print(jaxdelegate.__version__)"
    done = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == jd.__version__


def sdist_name(path: str) -> str | None:
    """The path of a tracked file in the source distribution; None if it is not in it."""
    top, _, rest = path.partition("/")
    if top == "jaxdelegate" and rest in LINKS:
        return None  # a folder there
    if top in LINKS:
        return f"jaxdelegate/{path}"
    return path if top == "jaxdelegate" or path in BUILD_FILES else None


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    checkout(source)
    return built("--sdist", source)


@pytest.mark.slow
def test_the_sdist_holds_what_a_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        entries = [entry for entry in archive if not entry.isdir()]
    assert all(entry.isfile() for entry in entries)  # links have become folders
    inside = {entry.name.partition("/")[2] for entry in entries}
    made = {"PKG-INFO", "setup.cfg", *(n for n in inside if n.startswith("jaxdelegate.egg-info/"))}
    assert inside - made == set(filter(None, map(sdist_name, tracked())))


@pytest.mark.exhaustive  # `nox -s install` does the same
@pytest.mark.parametrize("compiler", [True, False], ids=["compiler", "no-compiler"])
def test_the_sdist_is_installed_and_runs(sdist: Path, tmp_path: Path, compiler: bool) -> None:
    """In a separate environment, with the dependencies of this one."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    absent = {} if compiler else NO_COMPILER
    install = [tmp_path / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-deps", sdist]
    subprocess.run(install, check=True, capture_output=True, cwd=tmp_path, env=os.environ | absent)
    there = {name for name in LIBRARIES if (packages / "jaxdelegate" / name).exists()}
    assert there == {
        name for name, needed in LIBRARIES.items() if compiler and shutil.which(needed)
    }
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    demo = [tmp_path / "venv/bin/jaxdelegate", "demo", "--size=64", "--width=0.25"]
    done = subprocess.run(
        demo, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert "outputs agree with the numpy reference" in done.stdout
    assert compiler or "libjaxdelegate_kernels.so was not built" in done.stdout


def test_the_citation_has_the_version() -> None:
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == jd.__version__


def test_links_are_relative_and_committed() -> None:
    modes = subprocess.run(
        ["git", "ls-files", "-s", "jaxdelegate"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    links = {line.split("\t")[1] for line in modes.stdout.splitlines() if line.startswith("120000")}
    assert links == {"jaxdelegate/op_lowering", "jaxdelegate/quant"}
    assert (ROOT / "jaxdelegate" / "quant").readlink() == Path("../quant")
