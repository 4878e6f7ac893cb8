"""Builds the shared libraries, which pyproject.toml cannot describe.

Two C libraries are loaded by stock `load_delegate` and by LiteRT's CompiledModel; a C++ library,
for x86-64, has the kernels that XLA:CPU calls. None uses Python's headers, so one wheel works with
every Python of a platform.

Without a compiler the rest still installs. pip hides what a build prints if it succeeds, but not
the name of the wheel: a build tag there, 0.without_kernels, says what is missing. If a compiler
fails, so does the build, and pip prints all. JAXDELEGATE_REQUIRE_LIBRARIES=1 makes a missing
compiler an error too, and 0 nothing.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError

FOLDER = "jaxdelegate/litert"
LIBRARIES = {
    "jaxdelegate.litert.libjaxdelegate": "stub.c",
    "jaxdelegate.litert.libLiteRtGpuAccelerator": "accelerator.c",
}
KERNELS = Path("jaxdelegate/kernels")
# No flag names an instruction set: files of kernels do so themselves, function by function
# (kernels/target.h).
KERNEL_FLAGS = [
    *("-std=c++2a", "-O3", "-fvisibility=hidden", "-fno-rtti"),  # C++20, by the name in GCC 8 and 9
    *("-ffp-contract=off", "-fno-trapping-math"),  # products are fused where the source says so
    "-fwrapv",  # sums of integers
    "-g0",  # Python was built with -g, perhaps; every start would hash what that adds
]
# 1: an error without a compiler, as for wheels; 0: none, even if a compiler fails.
REQUIRED = os.environ.get("JAXDELEGATE_REQUIRE_LIBRARIES", "")
MISSING = {
    "libjaxdelegate_kernels": "convolutions and matrix products on the CPU are slower (by XLA)",
    "libjaxdelegate": "tf.lite.experimental.load_delegate cannot load the delegate",
    "libLiteRtGpuAccelerator": "LiteRT's CompiledModel cannot use the delegate",
}
# The linker's own line before this one says more.
LINKER_FAILED = re.compile("error: (ld returned|linker command failed)")
os.environ["LC_ALL"] = "C"  # compilers' messages in English


class BuildLibrary(build_ext):
    """Builds plain shared libraries, without a Python suffix or module initialization.

    In the place of one that is missing, a file says why (jaxdelegate/not_built.py reads it).
    """

    def run(self) -> None:
        """Build all libraries that can be built, then report the others."""
        self.reasons: dict[str, str] = {}
        self.is_broken = False
        super().run()
        for extension in self.extensions:
            library = Path(self.get_ext_fullpath(extension.name))
            record = library.with_suffix(".not_built.txt")
            if extension.name in self.reasons:
                library.unlink(missing_ok=True)  # from older sources
                library.parent.mkdir(parents=True, exist_ok=True)
                record.write_text(f"{self.reasons[extension.name]}\n", encoding="utf-8")
            else:
                record.unlink(missing_ok=True)
        if self.reasons:
            self.report()

    def report(self) -> None:
        """Warn of missing libraries, in the wheel's name too; an error if they are required."""
        names = {name.rpartition(".")[2]: reason for name, reason in self.reasons.items()}
        lines = [
            f"{name}.so was not built: {reason}. Without it, {MISSING[name]}."
            for name, reason in names.items()
        ]
        if REQUIRED not in ("", "0") or (self.is_broken and REQUIRED != "0"):
            advice = "To install jaxdelegate without them, set JAXDELEGATE_REQUIRE_LIBRARIES=0."
            raise CompileError("\n".join([*lines, advice]))
        self.warn("\n".join(lines))
        if not self.inplace:
            what = "kernels" if "libjaxdelegate_kernels" in names else "c_libraries"
            self.distribution.get_command_obj("bdist_wheel").build_number = f"0.without_{what}"

    def build_extensions(self) -> None:
        """Build the libraries; the files of each compile at once, one for each processor."""
        compile_all = self.compiler.compile

        def compile_at_once(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_all([source], **options), sources)
                return [path for paths in objects for path in paths]

        self.compiler.compile = compile_at_once
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Build a library, or note why that is impossible."""
        language, package = ("C++", "g++") if ext.language == "c++" else ("C", "gcc")
        command = self.compiler.compiler_so_cxx if language == "C++" else self.compiler.compiler_so
        if shutil.which(command[0]) is None:
            self.reasons[ext.name] = (
                f"no {language} compiler named {command[0]} was found; install one (on Debian: "
                f"apt-get install {package})"
            )
            return
        with errors_kept() as printed:
            try:
                super().build_extension(ext)
            except (BaseError, CCompilerError) as error:
                self.is_broken = True
                printed.seek(0)
                self.reasons[ext.name] = first_error(printed.read()) or str(error)

    def get_ext_filename(self, fullname: str) -> str:
        """The file name, the same for every Python."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:  # noqa: ARG002 (setuptools' API)
        """None, because the libraries mark their exported symbols."""
        return []


@contextlib.contextmanager
def errors_kept() -> Iterator[IO[str]]:
    """What compilers print to stderr meanwhile; afterwards it is printed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield kept
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            print(kept.read(), end="", file=sys.stderr)


def first_error(printed: str) -> str:
    """The first error that a compiler printed, or else its last line, as that of a linker."""
    lines = [line.strip() for line in printed.splitlines() if not LINKER_FAILED.search(line)]
    errors = [line for line in lines if "error:" in line] or list(filter(None, lines))[-1:]
    return re.sub(r"\S+/(?=jaxlib/include/)", "", "".join(errors[:1]))


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of the platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-PLATFORM."""
        return ("py3", "none", super().get_tag()[2])


def paths(pattern: str) -> list[str]:
    """The source files of the kernels, relative and sorted."""
    return sorted(path.as_posix() for path in KERNELS.glob(pattern))


def kernels() -> list[Extension]:
    """The library of kernels, on supported processors."""
    if not sysconfig.get_platform().endswith("x86_64"):
        return []
    jaxlib = importlib.util.find_spec("jaxlib")
    places = [] if jaxlib is None else jaxlib.submodule_search_locations or []
    return [
        Extension(
            "jaxdelegate.kernels.libjaxdelegate_kernels",
            paths("*.cc"),
            depends=[*paths("*.h"), *paths("*.inc")],
            include_dirs=[f"{place}/include" for place in places],  # jax.ffi.include_dir()
            extra_compile_args=KERNEL_FLAGS,
            language="c++",
            optional=True,  # BuildLibrary decides
        )
    ]


def package_dir() -> dict[str, str]:
    """Where packages are: below the root, by the links in jaxdelegate/.

    So an editable install is one entry of the path. With a mapping it would be an import hook, and
    Python asks that too late where the clone itself, a folder of the package's name, is in reach.
    """
    linked = ("op_lowering", "quant")
    if all(Path("jaxdelegate", name).is_dir() for name in linked):
        return {"": "."}
    return {f"jaxdelegate.{name}": name for name in linked}  # a checkout without links


setup(
    package_dir=package_dir(),
    ext_modules=[
        *kernels(),
        *(
            Extension(
                name,
                [f"{FOLDER}/{source}"],
                depends=[f"{FOLDER}/plugin.h"],
                extra_compile_args=["-std=c99", "-fvisibility=hidden", "-g0"],  # no folder's name
                optional=True,
            )
            for name, source in LIBRARIES.items()
        ),
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
