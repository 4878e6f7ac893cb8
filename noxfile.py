"""Checks in other environments: `nox -s install`; `nox -s litert_1_4 tf_lite` for older hosts.

`nox -s dependencies` runs tests with the oldest and the newest dependencies, `nox -s reproducible`
builds the wheel twice and compares the bytes.

`nox -s device_gates` installs gigabytes, compilers for a GPU and a TPU, and needs neither device.
"""

import hashlib
import subprocess
import tempfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
# The versions for the committed figures, which depend on them. jax[tpu] has an older libtpu, which
# fuses differently.
_GATES_JAX = "0.10.2"
_GATES_LIBTPU = "0.0.52"

# The tests that break first with other versions of jax, numpy, flatbuffers and LiteRT.
_ROOMS = ("tests/model", "tests/quant", "tests/pjrt", "tests/delegate", "tests/cache")
_ROOMS += ("tests/litert/test_errors.py", "tests/op_lowering/sorting/test_sorting.py")
nox.options.error_on_missing_interpreters = False  # a session without its Python is skipped


@nox.session
def litert_1_4(session: nox.Session) -> None:
    """The bridge in the oldest stock interpreter that shares a process with numpy 2."""
    session.install("-e", ".[test]")
    session.install("--no-deps", "ai-edge-litert==1.4.0")
    session.run("pytest", "tests/litert", "-m", "not slow", *session.posargs)


@nox.session
def tf_lite(session: nox.Session) -> None:
    """Run a sample of the bridge's tests in tf.lite's interpreter."""
    session.install("-e", ".[test]", "tensorflow-cpu>=2.19")
    session.run("pytest", "tests/litert/test_tf_lite.py", *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13"])
@nox.parametrize("compiler", ["with", "without"])
def install(session: nox.Session, compiler: str) -> None:
    """Build and install the source distribution; run the demo in an empty folder."""
    if compiler == "with":
        environment = {"JAXDELEGATE_REQUIRE_LIBRARIES": "1"}  # one that is not built is an error
    else:
        environment = {"CC": "no-compiler", "CXX": "no-compiler"}
    with tempfile.TemporaryDirectory() as folder:
        session.install("build")
        session.run("python", "-m", "build", "--sdist", "--outdir", folder, silent=True)
        session.chdir(folder)
        session.install(*map(str, Path().glob("*.tar.gz")), env=environment)
        session.run("jaxdelegate", "demo", "--size=64", "--width=0.25")


@nox.session
def reproducible(session: nox.Session) -> None:
    """Build the wheel of the latest commit twice, in two folders, and compare the bytes."""
    session.install("build", "setuptools>=77", "jaxlib<0.13")
    commit = ["git", "log", "-1", "--format=%ct"]
    epoch = subprocess.run(commit, check=True, capture_output=True, text=True).stdout.strip()
    environment = {"SOURCE_DATE_EPOCH": epoch, "JAXDELEGATE_REQUIRE_LIBRARIES": "1"}
    found = set()
    for name in ("a", "another/and/longer"):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, name)
            source.mkdir(parents=True)
            session.run("git", "archive", "--output", f"{folder}/source.tar", "HEAD", external=True)
            session.run("tar", "-xmf", f"{folder}/source.tar", "-C", str(source), external=True)
            build = ("python", "-m", "build", "--no-isolation", "--wheel", "--outdir", folder)
            session.run(*build, str(source), env=environment, silent=True)
            (wheel,) = Path(folder).glob("*.whl")
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            session.log(f"{digest}  {wheel.name}")
            found.add(digest)
    if len(found) > 1:
        session.error("two builds of one commit differ")


@nox.session(python="3.11")
@nox.parametrize("resolution", ["lowest-direct", "highest"])
def dependencies(session: nox.Session, resolution: str) -> None:
    """Run some tests with the oldest dependencies that pyproject.toml allows, or the newest."""
    session.install("uv")
    session.run("uv", "pip", "install", f"--resolution={resolution}", "-e", ".[test]")
    session.run("uv", "pip", "freeze")
    session.run("pytest", "-q", "-m", "not slow and not gpu", *_ROOMS, *session.posargs)


@nox.session
def device_gates(session: nox.Session) -> None:
    """Compare programs for a GPU and a TPU, compiled without them, with the committed figures.

    `-- --models=FOLDER` for more than what is built; `-- --update` replaces the figures.
    """
    compilers = f"jax[cuda12]=={_GATES_JAX}", f"libtpu=={_GATES_LIBTPU}"
    session.install("-e", ".[lm]", *compilers, "hypothesis", "pytest", "pytest-timeout")
    session.run("python", "bench/device_gates.py", *session.posargs)
    tests = "tests/bench/test_compile_for_gpu.py", "tests/bench/test_compile_for_tpu.py"
    # Without XLA's flags of the other tests: libtpu ends at those that it does not know.
    session.run("pytest", "--optimized", *tests)
