"""JaxDelegate in our interpreter: who takes what, what the report says, what a failure does."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import AddOptions, CustomOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.xla.aot import ARGUMENT_BYTES, is_argument

HOST_ONLY = "HostOnlyDouble"


@pytest.fixture(autouse=True)
def host_only_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A custom operator that only the reference can run: x -> 2 x."""
    from jaxdelegate.reference import KERNELS

    def double(_o: CustomOptions, _i: object, _s: object, x: np.ndarray) -> tuple[np.ndarray]:
        return (2 * x,)

    monkeypatch.setitem(KERNELS, HOST_ONLY, Kernel(double, same_shape))


def chain(operators: str, shape: tuple[int, ...] = (2, 3)) -> bytes:
    """A chain of operators on x: `a` adds x, `h` is the host-only operator, `r` is RELU."""
    builder = ModelBuilder()
    x = last = builder.input(shape, np.float32, "x")
    for letter in operators:
        y = builder.tensor(shape)
        match letter:
            case "a":
                builder.operator("ADD", [last, x], [y], AddOptions())
            case "h":
                builder.operator(HOST_ONLY, [last], [y], CustomOptions())
            case "r":
                builder.operator("RELU", [last], [y])
        last = y
    builder.outputs(last)
    return builder.build()


def run(interpreter: jd.Interpreter, x: np.ndarray) -> np.ndarray:
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def delegated(content: bytes, **options: object) -> tuple[jd.Interpreter, jd.JaxDelegate]:
    delegate = jd.JaxDelegate(**{"min_gain": 0, **options})
    return jd.Interpreter(model_content=content, experimental_delegates=[delegate]), delegate


X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


@pytest.mark.parametrize("operators", ["a", "ar", "h", "ahr", "aarhaarhra", "hh", "hah"])
def test_every_mixture_equals_the_reference(operators: str) -> None:
    interpreter, _ = delegated(chain(operators))
    assert_close([run(interpreter, X)], [run(jd.Interpreter(model_content=chain(operators)), X)])


def test_report_names_every_operator() -> None:
    _, delegate = delegated(chain("aarha"))
    report = delegate.report()
    assert [(n.op, n.delegated, n.partition) for n in report.nodes] == [
        ("ADD", True, 0), ("ADD", True, 0), ("RELU", True, 0),
        (HOST_ONLY, False, None), ("ADD", True, 1),
    ]  # fmt: skip
    assert "custom operator without an XLA lowering" in str(report.nodes[3].reason)
    assert str(report).splitlines()[-1] == (
        "4 operations will run on XLA:CPU, and the remaining 1 operation will run on the CPU;"
        " 2 partitions."
    )


def test_report_before_use() -> None:
    with pytest.raises(LookupError, match="was not applied to subgraph 0 yet"):
        jd.JaxDelegate().report()


def test_warns_once_of_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxdelegate"):
        interpreter, _ = delegated(chain("hah"))
        interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], (4, 3))
        interpreter.allocate_tensors()
    (record,) = caplog.records
    assert record.getMessage().splitlines() == [
        "JaxDelegate: 1 operation will run on XLA:CPU, and the remaining 2 operations will run on "
        "the CPU; 1",
        "  partition.",
        f"  {HOST_ONLY}: custom operator without an XLA lowering; jaxdelegate.register_operator "
        "adds one (2",
        "    operators: #0, #2)",
        "The report of the delegate, `print(delegate.report())`, has every operator.",
    ]


def test_full_delegation_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxdelegate"):
        delegated(chain("ar"))
    assert caplog.records == []


def test_required_full_delegation_lists_everything_left() -> None:
    with pytest.raises(jd.DelegationError) as caught:
        delegated(chain("hahrh"), require_full_delegation=True)
    assert "3 of 5 operators cannot be delegated" in str(caught.value)
    assert f"{HOST_ONLY}: custom operator without an XLA lowering" in str(caught.value)
    assert "(3 operators: #0, #2, #4)" in str(caught.value)
    delegated(chain("ar"), require_full_delegation=True)


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, "dd.ddd.d"),
        ({"max_delegated_partitions": 1}, "...ddd.."),
        ({"max_delegated_partitions": 2}, "dd.ddd.."),
        ({"min_nodes_per_partition": 2}, "dd.ddd.."),
        ({"min_nodes_per_partition": 4}, "........"),
        ({"first_delegate_node_index": 4}, "....dd.d"),
        ({"last_delegate_node_index": 3}, "dd.d...."),
    ],
)
def test_partition_options(options: dict[str, int], taken: str) -> None:
    interpreter, delegate = delegated(chain("arharahr"), **options)
    report = delegate.report()
    assert "".join("d" if n.delegated else "." for n in report.nodes) == taken
    assert all(n.reason for n in report.left)
    assert_close([run(interpreter, X)], [run(jd.Interpreter(model_content=chain("arharahr")), X)])


def test_values_stay_on_the_device_between_partitions() -> None:
    import jax

    seen = []
    interpreter, _ = delegated(chain("ar"))
    other = jd.JaxDelegate(last_delegate_node_index=0)
    split = jd.Interpreter(
        model_content=chain("ar"), experimental_delegates=[other, jd.JaxDelegate(min_gain=0)]
    )
    run(interpreter, X)
    host = split._runner(0)
    original = host.assign
    host.assign = lambda i, v: (seen.append(v), original(i, v))[1]  # type: ignore[method-assign]
    run(split, X)
    assert len(seen) == 2
    assert all(isinstance(value, jax.Array) for value in seen)


def test_resizing_back_compiles_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxdelegate.xla import aot

    compiled = []
    original = aot.compile_partition
    monkeypatch.setattr(aot, "compile_partition", lambda *a: (compiled.append(1), original(*a))[1])
    interpreter, _ = delegated(chain("ar"))
    for rows in (2, 5, 2, 5):
        interpreter.resize_tensor_input(0, [rows, 3])
        assert run(interpreter, np.ones((rows, 3), np.float32)).shape == (rows, 3)
    assert len(compiled) == 2


def test_large_weights_are_moved_once_for_all_shapes() -> None:
    builder = ModelBuilder()
    n = ARGUMENT_BYTES // 4
    x = builder.input((1, n), np.float32, "x")
    w = builder.constant(np.arange(n, dtype=np.float32).reshape(1, n), "w")
    y = builder.tensor((1, n))
    builder.operator("ADD", [x, w], [y])
    builder.outputs(y)
    interpreter, delegate = delegated(builder.build())
    programs = []
    for rows in (1, 2):
        interpreter.resize_tensor_input(0, [rows, n])
        run(interpreter, np.zeros((rows, n), np.float32))
        programs.append(interpreter._runner(0)._steps[0].kernel._program)
    assert delegate.report().delegated
    assert programs[0].weights[0] is programs[1].weights[0]


@pytest.mark.parametrize(
    ("const", "on"),
    [
        (np.zeros(ARGUMENT_BYTES, np.int8), ["cpu", "gpu"]),
        (np.zeros(32, np.float32), ["gpu"]),
        (np.zeros((1, 1, 1, 32), np.float32), ["gpu"]),
        (np.zeros((2, 32), np.float32), []),
        (np.zeros(32, np.int32), []),
        (np.zeros((1,), np.float32), []),
        (np.zeros((), np.float32), []),
        (np.zeros((0,), np.float32), []),
    ],
)
def test_which_constants_are_arguments(const: np.ndarray, on: list[str]) -> None:
    assert [platform for platform in ("cpu", "gpu") if is_argument(const, platform)] == on


def test_a_lying_lowering_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    flat = dataclasses.replace(RULES["RELU"], lower=lambda *_: lambda x: (x.reshape(-1),))
    monkeypatch.setitem(RULES, "RELU", flat)
    interpreter, _ = delegated(chain("ar"), rewrites="none")
    with pytest.raises(
        jd.LoweringError,
        match=r"node 1 \(RELU\).*traced as float32 \[6\], propagated as float32 \[2, 3\]",
    ):
        interpreter.allocate_tensors()
    fallback, _ = delegated(chain("ar"), rewrites="none", fallback_on_error=True)
    assert_close([run(fallback, X)], [np.maximum(2 * X, 0)])


def test_a_crashing_lowering_names_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    def crash(*_: object) -> None:
        raise ValueError("no such luck")

    monkeypatch.setitem(RULES, "RELU", dataclasses.replace(RULES["RELU"], lower=crash))
    interpreter, _ = delegated(chain("ar"), rewrites="none")
    message = r"nodes 0 \(ADD\) to 1 \(RELU\) could not be compiled for .*: no such luck"
    with pytest.raises(jd.LoweringError, match=message):
        interpreter.allocate_tensors()


def test_platforms() -> None:
    with pytest.raises(jd.OptionError, match="platform: 'tpu' is not there; JAX has: "):
        jd.JaxDelegate(platform="tpu")
    with pytest.raises(jd.OptionError, match="device_index: 99 is not there; cpu has: "):
        jd.JaxDelegate(platform="cpu", device_index=99)


def test_context_manager_forgets_reports() -> None:
    with jd.JaxDelegate() as delegate:
        jd.Interpreter(model_content=chain("a"), experimental_delegates=[delegate])
        assert delegate.report().delegated
    with pytest.raises(LookupError):
        delegate.report()


def test_one_delegate_in_two_interpreters() -> None:
    delegate = jd.JaxDelegate()
    first, second = (
        jd.Interpreter(model_content=chain(c), experimental_delegates=[delegate])
        for c in ("ar", "ra")
    )
    a, b = run(first, X), run(second, X)
    assert_close([a, b], [np.maximum(2 * X, 0), np.maximum(X, 0) + X])


@pytest.mark.slow
def test_jax_platforms_that_are_not_there_are_named() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run(
        [sys.executable, "-m", "jaxdelegate", "demo"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert (
        "platform: 'cuda' is not there; JAX has: nothing, because JAX_PLATFORMS is" in done.stderr
    )
    assert "Traceback" not in done.stderr
