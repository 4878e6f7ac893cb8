"""`make lint` compiles the kernels with the headers of several jaxlib releases."""

import platform
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import NoReturn

import pytest
from packaging.requirements import Requirement

from tests.kernels import check_headers

BUILDS = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None, reason="no g++ for x86-64"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Headers of two releases: the second one lacks a function."""
    monkeypatch.delenv("CXX", raising=False)
    for version, text in (("0.10", "int f();"), ("0.12.0", "")):
        header = tmp_path / version / "jaxlib/include/ffi.h"
        header.parent.mkdir(parents=True)
        header.write_text(text)
    monkeypatch.setattr(check_headers, "releases", lambda _: ["0.10", "0.12.0"])
    return tmp_path


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels"
    path.mkdir()
    (path / "good.cc").write_text("int good() { return 1; }\n")
    (path / "mean.cc").write_text('#include "ffi.h"\nint mean() { return f(); }\n')
    return path


@BUILDS
def test_the_file_and_the_release_are_named(
    folder: Path, kernels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_headers.main(kernels, folder) == 1
    printed = capsys.readouterr()
    assert "kernels with jaxlib 0.10: 0 of 2 files have errors" in printed.out
    assert "kernels with jaxlib 0.12.0: 1 of 2 files have errors" in printed.out
    assert "mean.cc:2:21: error: " in printed.err


@BUILDS
def test_what_has_no_error_is_compiled_again_after_a_change(
    folder: Path, kernels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for said in ("0 of 2 files", "unchanged"):
        check_headers.main(kernels, folder)
        printed = capsys.readouterr()
        assert f"jaxlib 0.10: {said}" in printed.out
        assert "jaxlib 0.12.0: 1 of 2 files" in printed.out
    (kernels / "calls.h").write_text("")
    check_headers.main(kernels, folder)
    assert "jaxlib 0.10: 0 of 2 files" in capsys.readouterr().out


def test_without_a_compiler_the_check_is_skipped_loudly(
    folder: Path,
    kernels: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", "no-compiler -m64")
    assert check_headers.main(kernels, folder) == 0
    assert "SKIPPED" in (printed := capsys.readouterr().err)
    assert "no-compiler (on Debian: apt-get install g++)" in printed


def test_without_a_network_the_newest_known_release_is_checked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: str) -> NoReturn:
        raise subprocess.CalledProcessError(1, arguments)

    monkeypatch.setattr(check_headers, "pip", failing)
    assert check_headers.newest("jaxlib", folder) == "0.12.0"
    with pytest.raises(subprocess.CalledProcessError):
        check_headers.newest("jaxlib", tmp_path / "absent")


@BUILDS
def test_headers_that_cannot_be_downloaded_are_an_error(
    folder: Path,
    kernels: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(check_headers, "releases", lambda _: ["0.0.0"])
    monkeypatch.setattr(check_headers, "WHEELS", ("--no-index",))
    assert check_headers.main(kernels, folder) == 1
    assert "which failed" in capsys.readouterr().err
    assert not (folder / "0.0.0").exists()


def test_the_middle_release_is_within_the_range() -> None:
    project = tomllib.loads((check_headers.ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = [n for n in map(Requirement, project["dependencies"]) if n.name == "jaxlib"]
    assert check_headers.MIDDLE in wanted.specifier
