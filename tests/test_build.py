"""What setup.py does with compilers that fail or are missing, and what the package then says."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import jaxdelegate as jd
from jaxdelegate.kernels import library as kernels
from jaxdelegate.litert import library as litert
from tests.support import library_builds
from tests.support.library_builds import GOOD, KERNEL, LIBRARY, build

ROOT = Path(__file__).parents[1]
LIBRARIES = (
    LIBRARY,
    *(f"jaxdelegate/litert/{name}.so" for name in ("libjaxdelegate", "libLiteRtGpuAccelerator")),
)
RECORD = "jaxdelegate/kernels/libjaxdelegate_kernels.not_built.txt"
BROKEN = "int broken() { return undeclared; }\nint again() { return unknown; }\n"
SAID = (
    "libjaxdelegate_kernels.so was not built: "
    "jaxdelegate/kernels/kernel.cc:1:23: error: 'undeclared'"
)

BUILDS = pytest.mark.skipif(
    platform.machine() != "x86_64" or not all(map(shutil.which, ("gcc", "g++"))),
    reason="builds kernels for x86-64 with gcc and g++",
)
MAKES = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("make"), reason="runs make"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return library_builds.source(tmp_path)


def break_kernel(source: Path, text: str = BROKEN) -> None:
    (source / KERNEL).write_text(text)


def reason(source: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Why the package of a folder has no kernels."""
    monkeypatch.setattr(kernels, "LIBRARY", source / LIBRARY)
    said = kernels.why_not()
    assert said is not None
    return said


@BUILDS
def test_a_compile_error_fails_the_build_and_is_kept(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_kernel(source)
    done = build(source)
    assert done.returncode != 0
    assert f"error: {SAID}" in done.stderr
    assert "set JAXDELEGATE_REQUIRE_LIBRARIES=0" in done.stderr
    assert "^~~~" in done.stderr  # the compiler's own output
    assert reason(source, monkeypatch).startswith(SAID)
    assert (source / "jaxdelegate/litert/libjaxdelegate.so").exists()  # the others are built


@BUILDS
def test_the_report_and_the_option_quote_the_compiler(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAXDELEGATE_NATIVE_KERNELS", raising=False)
    break_kernel(source)
    assert build(source, JAXDELEGATE_REQUIRE_LIBRARIES="0").returncode == 0
    reason(source, monkeypatch)
    delegate = jd.JaxDelegate(platform="cpu")
    assert delegate._kernels_in_words().startswith(
        f"Native kernels: none, XLA computes all: {SAID}"
    )
    with pytest.raises(jd.OptionError, match=re.escape(f"native_kernels: {SAID}")):
        jd.JaxDelegate(platform="cpu", native_kernels=True)


@BUILDS
def test_the_next_build_decides(source: Path) -> None:
    """A failure leaves no library of older sources, a success no old reason."""
    for folder, *arguments in ((source,), (source / "out", "--build-lib=out")):
        for text in (GOOD, BROKEN, GOOD):
            break_kernel(source, text)
            done = build(source, "--force", *(arguments or ("--inplace",)))
            assert (done.returncode == 0) == (text == GOOD)
            assert (folder / LIBRARY).exists() == (text == GOOD)
            assert (folder / RECORD).exists() == (text == BROKEN)


@BUILDS
def test_no_compiler_is_said_only_without_one(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = build(source, CC="no-cc --fast", CXX="no-cxx")
    assert done.returncode == 0
    assert reason(source, monkeypatch).startswith(
        "libjaxdelegate_kernels.so was not built: no C++ compiler named no-cxx was found; install "
        "one (on Debian: apt-get install g++). "
    )
    monkeypatch.setattr(litert, "_FOLDER", source / "jaxdelegate/litert")
    for path in (jd.litert.library_path, jd.litert.runtime_path):
        with pytest.raises(FileNotFoundError, match="built: no C compiler named no-cc was found"):
            path()
    assert build(source, JAXDELEGATE_REQUIRE_LIBRARIES="1", CXX="no-cxx").returncode != 0


@BUILDS
def test_a_compiler_that_explains_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build(source, CXX="false").returncode != 0
    said = reason(source, monkeypatch)
    assert re.search(r"was not built: .*'?false'?.* exit (code|status) 1", said)
    assert "no C++ compiler" not in said


@BUILDS
def test_the_linker_s_own_line_is_quoted(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernel(source, "int absent();\nint broken() { return absent(); }\n")
    assert build(source, CXX="g++ -Wl,--no-undefined").returncode != 0
    assert "undefined reference to" in reason(source, monkeypatch)


@BUILDS
def test_a_header_is_named_without_the_machine_s_folders(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = source / "somewhere/jaxlib/include/broken.h"
    header.parent.mkdir(parents=True)
    header.write_text("#error too new\n")
    break_kernel(source, f'#include "{header}"\n')
    assert build(source).returncode != 0
    assert " was not built: jaxlib/include/broken.h:1:2: error: #error too new. " in reason(
        source, monkeypatch
    )


def test_without_a_record_no_reason_is_claimed(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = reason(source, monkeypatch)
    assert said.startswith(
        "libjaxdelegate_kernels.so is missing, and there is no record of a build"
    )
    assert "compiler" not in said


def test_a_record_is_one_short_printable_line(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / RECORD).write_bytes(b"error: \x1b[31m\nforged\xff " + b"<T>" * 1000)
    said = reason(source, monkeypatch)
    assert said.isprintable()
    assert len(said) < 600


# ---- make, with programs instead of the environment's

PYTHON = """#!/bin/sh
echo "python $*"
[ -z "$REASON" ] || echo "$REASON" > jaxdelegate/kernels/libjaxdelegate_kernels.not_built.txt
exit $PIP
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose libraries are built and installed."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name, text in (("python", PYTHON), ("jaxdelegate", "#!/bin/sh\necho demo\n")):
        (tmp_path / ".venv/bin" / name).write_text(text)
        (tmp_path / ".venv/bin" / name).chmod(0o755)
    for name in ("pyproject.toml", "setup.py", *LIBRARIES, ".venv/.installed"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def make(
    clone: Path, *targets: str, pip: int = 0, reason: str = "", compiler: str = "sh"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *(targets or ("demo",)), f"CXX={compiler} -m64"],
        cwd=clone,
        env={**os.environ, "PIP": str(pip), "REASON": reason},
        capture_output=True,
        text=True,
        check=False,
    )


@MAKES
def test_make_builds_missing_libraries_where_there_is_a_compiler(clone: Path) -> None:
    assert make(clone).stdout.splitlines()[-1] == "demo"
    for name in LIBRARIES:
        (clone / name).unlink()
        assert "pip install" in make(clone).stdout
        assert "pip install" not in make(clone, compiler="no-compiler").stdout
        (clone / name).touch()
    assert "pip install" not in make(clone).stdout


@MAKES
@pytest.mark.parametrize("target", ["demo", "develop"])
def test_make_fails_where_the_build_fails(clone: Path, target: str) -> None:
    (clone / ".venv/.installed").unlink()
    done = make(clone, target, pip=1)
    assert done.returncode != 0
    assert "demo" not in done.stdout.splitlines()
    assert not list((clone / ".venv").glob(".installed*"))


@MAKES
@pytest.mark.parametrize("target", ["demo", "develop"])
def test_make_quotes_what_was_not_built(clone: Path, target: str) -> None:
    (clone / ".venv/.installed").unlink()
    done = make(clone, target, reason="no C++ compiler")
    assert done.returncode == 0
    assert f"{RECORD}:no C++ compiler\n" in done.stdout


def test_git_and_docker_ignore_the_record() -> None:
    for name in (".gitignore", ".dockerignore"):
        assert any("*.not_built.txt" in line for line in (ROOT / name).read_text().splitlines())


def test_the_makefile_names_tests_that_exist() -> None:
    """A name that pytest does not find would end the checks after half an hour."""
    text = (ROOT / "Makefile").read_text()
    lists = re.findall(r"addprefix tests/,([\w. ]+)\)", text)
    names = [f"tests/{name}" for names in lists for name in names.split()]
    names += re.findall(r"(?<!\w)tests/[\w/]+(?:\.\w+)?(?=[\s):])", text)
    assert len(names) > 20
    paths = [ROOT / name for name in names]
    missing = [p for p in paths if not (p.is_file() or any(p.rglob("*.py")))]  # bytecode may stay
    assert missing == []
