"""Several processes, JAX's own cache, and donated inputs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxdelegate as jd
from jaxdelegate.cache.maintenance import prune, verify
from jaxdelegate.testing import ModelBuilder

CHILD = """
import json, sys, warnings
import numpy as np
import jaxdelegate as jd
folder, directory = sys.argv[1:]
delegate = jd.JaxDelegate(serialization_dir=directory)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    interpreter = jd.Interpreter(f"{folder}/model.tflite", experimental_delegates=[delegate])
    interpreter.allocate_tensors()
interpreter.set_tensor(0, np.load(f"{folder}/x.npy"))
interpreter.invoke()
y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
print(json.dumps({
    "loaded": delegate.programs.statistics.loaded,
    "stored": delegate.programs.statistics.stored,
    "agrees": bool(np.array_equal(y, np.load(f"{folder}/want.npy"))),
    "warned": [str(w.message) for w in warned if issubclass(w.category, jd.CacheWarning)],
}))
"""

# Children need conftest.py's settings, which are part of the key.
SETTINGS = {
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_DEFAULT_MATMUL_PRECISION": "float32",
}


def start(folder: Path, directory: Path, before: str = "") -> subprocess.Popen[str]:
    """Start a child; `before` is Python code that it runs first."""
    return subprocess.Popen(
        [sys.executable, "-c", before + CHILD, str(folder), str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **SETTINGS},
    )


def child(folder: Path, directory: Path, before: str = "") -> dict[str, object]:
    process = start(folder, directory, before)
    out, _ = process.communicate(timeout=240)
    return dict(json.loads(out.splitlines()[-1]))


def prepare(run, folder: Path) -> None:
    """Write the model, its input and the expected output for children."""
    (folder / "model.tflite").write_bytes(run.network)
    np.save(folder / "x.npy", run.x)
    np.save(folder / "want.npy", run.want)


@pytest.mark.slow
def test_two_processes_fill_one_directory(run, directory: Path, tmp_path: Path) -> None:
    prepare(run, tmp_path)
    processes = [start(tmp_path, directory) for _ in "ab"]
    results = [json.loads(p.communicate(timeout=280)[0].splitlines()[-1]) for p in processes]
    assert [r["agrees"] for r in results] == [True] * 2
    assert [r["warned"] for r in results] == [[]] * 2
    assert sum(r["stored"] for r in results) >= 1
    assert {r["loaded"] + r["stored"] for r in results} == {1}
    assert len(run.programs()) == 1
    assert not list(directory.glob(".writing-*"))
    assert run() == "loaded"


WITHOUT_BLAKE3 = "import sys; sys.modules['blake3'] = None\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [pytest.param("", marks=pytest.mark.exhaustive), pytest.param(WITHOUT_BLAKE3, id="no")]
)
def test_processes_with_blake3_and_without(
    run, directory: Path, tmp_path: Path, first: str
) -> None:
    """Each finds its own programs and ignores the other's."""
    pytest.importorskip("blake3")
    prepare(run, tmp_path)
    second = "" if first else WITHOUT_BLAKE3
    done = [child(tmp_path, directory, before) for before in (first, second, first, second)]
    assert [(r["stored"], r["loaded"]) for r in done] == [(1, 0), (1, 0), (0, 1), (0, 1)]
    assert all(r["agrees"] and not r["warned"] for r in done)
    assert {row.problem for row in verify(directory)} == {None}
    names = {path.name for path in directory.glob("*.weights")}
    assert len(names) == 2
    assert len({name for name in names if name.startswith("blake3-")}) == 1


KILLED = """
import os, sys, time
from jaxdelegate.cache.directory import PrivateDirectory
def parts():
    yield b"half"
    sys.stdout.write("writing\\n"); sys.stdout.flush()
    time.sleep(60)
PrivateDirectory.open(sys.argv[1]).write(sys.argv[2], parts())
"""


def test_a_process_killed_while_it_writes(run, directory: Path) -> None:
    """The entry that it was replacing stays whole, and its temporary file is pruned later."""
    run()
    (path,) = run.programs()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(directory), path.name],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    (left,) = directory.glob(".writing-*")
    assert run() == "loaded"
    os.utime(left, (time.time() - 7200,) * 2)
    assert left.name in prune(directory, 1 << 30).removed
    assert run() == "loaded"


# ---- JAX's own cache


def test_jaxs_own_cache_is_left_alone(run, directory: Path, tmp_path: Path) -> None:
    """JAX fills and reads it as usual; programs from it cannot be serialized."""
    own = tmp_path / "jax"
    before = {
        name: getattr(jax.config, name)
        for name in (
            "jax_compilation_cache_dir",
            "jax_persistent_cache_min_compile_time_secs",
            "jax_persistent_cache_min_entry_size_bytes",
        )
    }
    try:
        jax.config.update("jax_compilation_cache_dir", str(own))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        compilation_cache.reset_cache()
        assert run() == "stored"
        assert any(own.iterdir())
        for path in directory.iterdir():
            path.unlink()
        for _ in range(2):
            with pytest.warns(jd.CacheWarning, match="was read from JAX's own"):
                assert run() == "neither"
        for path in own.iterdir():
            path.unlink()
        assert run() == "stored"
        assert run() == "loaded"
        assert jax.config.jax_compilation_cache_dir == str(own)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


# ---- donation


def doubling() -> tuple[bytes, int, int]:
    builder = ModelBuilder()
    x = builder.input((1024,), np.float32, "x")
    y, z = builder.tensor((1024,)), builder.tensor((1024,))
    builder.operator("ADD", [x, x], [y])
    builder.operator("MUL", [x, y], [z])
    builder.outputs(y, z)
    return builder.build(), y, z


@pytest.mark.parametrize("is_cached", [False, True])
def test_donated_inputs(directory: Path, is_cached: bool) -> None:
    """Results may reuse the inputs' memory, but not host arrays or shared ones."""
    content, y, z = doubling()
    cache = {"serialization_dir": str(directory)} if is_cached else {}
    for _ in range(2):
        delegates = [
            jd.JaxDelegate(cache, donate_inputs=True, last_delegate_node_index=0),
            jd.JaxDelegate(cache, donate_inputs=True),
        ]
        interpreter = jd.Interpreter(model_content=content, experimental_delegates=delegates)
        interpreter.allocate_tensors()
        for value in (1.0, 3.0):
            given = np.full(1024, value, np.float32)
            interpreter.set_tensor(0, given)
            for _ in range(2):  # the input is still there for the next invoke
                interpreter.invoke()
                np.testing.assert_array_equal(interpreter.get_tensor(y), 2 * given)
                np.testing.assert_array_equal(interpreter.get_tensor(z), 2 * given * given)
            np.testing.assert_array_equal(interpreter.get_tensor(0), given)


def test_donation_is_in_the_program() -> None:
    content, *_ = doubling()
    delegate = jd.JaxDelegate(donate_inputs=True)
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    program = interpreter._runner(0)._steps[0].kernel._program
    assert program.donated == (0,)
    assert "input_output_alias" in program.executable.as_text()
    mine = jax.device_put(np.ones(1024, np.float32))
    program([mine])
    np.testing.assert_array_equal(mine, np.ones(1024))
