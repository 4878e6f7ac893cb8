"""The delegate registrar."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import providers
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers import builtin, create_delegates, flag_values
from jaxdelegate.providers.parsing import Flag, FlagValues


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    providers.registered()
    monkeypatch.setattr(providers, "_PROVIDERS", list(providers._PROVIDERS))


class AddKernel(jd.SimpleDelegateKernel):
    def init(self, context: object, params: object) -> None:
        pass

    def prepare(self, context: object, node: object) -> None:
        pass

    def eval(self, context: object, node: object) -> None:
        pass


class AddDelegate(jd.SimpleDelegate):
    name = "Adder"

    def __init__(self, speed: int = 0) -> None:
        super().__init__()
        self.speed = speed

    def is_node_supported(self, node: object) -> bool:  # noqa: ARG002
        return False

    def create_kernel(self) -> AddKernel:
        return AddKernel()


class AddProvider:
    name = "ADD"

    def flags(self) -> list[Flag]:
        return [Flag("use_add", bool, False, "Add."), Flag("add_speed", int, 3, "How fast.")]

    def create(self, flag_values: FlagValues) -> AddDelegate | None:
        return AddDelegate(flag_values.add_speed) if flag_values.use_add else None


def names(**given: object) -> list[str]:
    return [row.provider.name for row in create_delegates(flag_values(**given))]


def test_a_registered_provider_makes_its_delegate() -> None:
    jd.register_delegate_provider(AddProvider())
    (made,) = create_delegates(flag_values(add_speed=7, use_add=True))
    assert isinstance(made.delegate, AddDelegate)
    assert made.delegate.speed == 7


def test_delegates_come_in_the_order_of_their_first_flags() -> None:
    jd.register_delegate_provider(AddProvider())
    assert names(use_jax=True, use_add=True) == ["JAX", "ADD"]
    assert names(use_add=True, use_jax=True) == ["ADD", "JAX"]
    # A later flag of the same provider does not move it.
    assert names(add_speed=1, use_jax=True, use_add=True) == ["JAX", "ADD"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["JAX"]),
        ({"use_jax": True}, ["JAX"]),
        ({"use_jax": False}, []),
        ({"use_xnnpack": True}, []),
        ({"use_xnnpack": False}, []),
        ({"use_xnnpack": True, "use_jax": True}, ["JAX"]),
        ({"external_delegate_path": "jaxdelegate:JaxDelegate"}, ["EXTERNAL"]),
    ],
)
def test_the_default_is_jax_unless_another_is_requested(
    given: dict[str, object], expected: list[str]
) -> None:
    assert names(**given) == expected


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (AddProvider(), "'ADD' is already registered"),
        (
            types.SimpleNamespace(
                name="OTHER", flags=lambda: [Flag("use_add", bool)], create=lambda _: None
            ),
            "'OTHER': flag 'use_add' belongs to ADD",
        ),
    ],
)
def test_names_in_use_are_rejected(provider: object, message: str) -> None:
    jd.register_delegate_provider(AddProvider())
    with pytest.raises(ValueError, match=message):
        jd.register_delegate_provider(provider)  # type: ignore[arg-type]


def test_a_class_and_other_forms_of_flags() -> None:
    class Other(AddProvider):
        name = "OTHER"

        def flags(self) -> list[object]:  # type: ignore[override]
            return [("use_add", bool, False), {"name": "add_speed", "type": int, "default": 5}]

    jd.register_delegate_provider(Other)  # type: ignore[arg-type]
    (made,) = create_delegates(flag_values(use_add=True))
    assert made.delegate.speed == 5
    assert flag_values()["add_speed"] == 5


@pytest.mark.parametrize("flag", ["use_x", ("use_x",), {"name": "x", "kind": int}])
def test_invalid_flags(flag: object) -> None:
    provider = types.SimpleNamespace(name="X", flags=lambda: [flag], create=lambda _: None)
    with pytest.raises(jd.OptionError, match="delegate provider 'X': "):
        jd.register_delegate_provider(provider)


def test_a_value_that_a_delegate_rejects() -> None:
    class Picky(AddProvider):
        def create(self, flag_values: FlagValues) -> AddDelegate | None:
            raise ValueError(f"add_speed: too fast: {flag_values.add_speed}")

    jd.register_delegate_provider(Picky())
    with pytest.raises(jd.OptionError, match="ADD delegate: add_speed: too fast: 9"):
        create_delegates(flag_values(add_speed=9))


def test_an_object_that_is_not_a_provider_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"name, flags\(\) and create\(flag_values\), got int"):
        jd.register_delegate_provider(3)  # type: ignore[arg-type]


def options(**given: object) -> DelegateOptions:
    return builtin.jax_options(flag_values(**given))


def test_every_option_of_the_delegate_is_a_flag() -> None:
    given = {
        "jax_platform": "cpu",
        "jax_device_index": 2,
        "jax_inference_priority1": "min_latency",
        "jax_quant_mode": "integer",
        "jax_enable_quant": False,
        "jax_serialization_dir": "/somewhere",
    }
    assert options(**given) == DelegateOptions(
        platform="cpu",
        device_index=2,
        inference_priority1="min_latency",
        quant_mode="integer",
        enable_quant=False,
        serialization_dir="/somewhere",
    )
    flags = {flag.name: flag for flag in builtin.JAX.flags()}
    assert set(flags) == {"use_jax"} | {
        f"jax_{name}" for name in DelegateOptions.__dataclass_fields__
    }
    assert flags["jax_platform"].choices == ("gpu", "tpu", "cpu")
    assert (flags["jax_platform"].type, flags["jax_platform"].default) == (str, None)
    assert flags["jax_is_precision_loss_allowed"].type is bool
    assert flags["jax_last_delegate_node_index"].default == 2**31 - 1


def test_names_of_tflite_map_onto_the_options() -> None:
    assert options(use_gpu=True) == DelegateOptions(is_precision_loss_allowed=True)
    assert options(use_gpu=True, gpu_precision_loss_allowed=False) == DelegateOptions(
        is_precision_loss_allowed=False
    )
    assert options() == options(use_jax=True) == DelegateOptions()
    assert options(gpu_precision_loss_allowed=True) == DelegateOptions(
        is_precision_loss_allowed=True
    )
    assert options(
        use_gpu=True,
        gpu_precision_loss_allowed=False,
        gpu_experimental_enable_quant=False,
        gpu_inference_for_sustained_speed=True,
        gpu_backend="cl",
        gpu_wait_type="active",
        max_delegated_partitions=3,
        min_nodes_per_partition=-1,
        first_delegate_node_index=4,
        last_delegate_node_index=9,
        delegate_serialize_dir="/cache",
        delegate_serialize_token="m1",
        require_full_delegation=True,
    ) == DelegateOptions(
        is_precision_loss_allowed=False,
        enable_quant=False,
        inference_preference="sustained_speed",
        max_delegated_partitions=3,
        min_nodes_per_partition=0,
        first_delegate_node_index=4,
        last_delegate_node_index=9,
        serialization_dir="/cache",
        model_token="m1",
        require_full_delegation=True,
    )


def test_own_names_win_over_defaults_of_tflite() -> None:
    assert options(use_gpu=True, jax_is_precision_loss_allowed=False) == DelegateOptions(
        is_precision_loss_allowed=False
    )
    assert options(use_gpu=True, jax_inference_preference="balanced") == DelegateOptions(
        is_precision_loss_allowed=True, inference_preference="balanced"
    )
    assert options(jax_max_delegated_partitions=1) == DelegateOptions(max_delegated_partitions=1)


def test_both_names_may_have_the_same_value() -> None:
    given = {"jax_serialization_dir": "/a", "delegate_serialize_dir": "/a"}
    assert options(**given) == DelegateOptions(serialization_dir="/a")
    given = {"jax_max_delegated_partitions": 0, "max_delegated_partitions": -1}
    assert options(**given) == DelegateOptions()


CONTRADICTIONS = (
    ({"max_delegated_partitions": 5}, {"jax_max_delegated_partitions": 1}),
    ({"min_nodes_per_partition": 5}, {"jax_min_nodes_per_partition": 1}),
    ({"first_delegate_node_index": 5}, {"jax_first_delegate_node_index": 0}),
    ({"last_delegate_node_index": 5}, {"jax_last_delegate_node_index": 6}),
    ({"require_full_delegation": True}, {"jax_require_full_delegation": False}),
    ({"delegate_serialize_dir": "/a"}, {"jax_serialization_dir": "/b"}),
    ({"delegate_serialize_token": "a"}, {"jax_model_token": "b"}),
    ({"gpu_precision_loss_allowed": True}, {"jax_is_precision_loss_allowed": False}),
    ({"gpu_experimental_enable_quant": False}, {"jax_enable_quant": True}),
    (
        {"gpu_inference_for_sustained_speed": True},
        {"jax_inference_preference": "fast_single_answer"},
    ),
    (
        {"gpu_inference_for_sustained_speed": False},
        {"jax_inference_preference": "sustained_speed"},
    ),
)


def test_every_alias_has_a_row() -> None:
    known = {
        name for option in DelegateOptions.__dataclass_fields__ for name in builtin.aliases(option)
    }
    assert {name for tflite, _ in CONTRADICTIONS for name in tflite} == known


@pytest.mark.parametrize(("tflite", "ours"), CONTRADICTIONS)
def test_two_names_with_different_values(tflite: dict[str, Any], ours: dict[str, Any]) -> None:
    ((name, value),), ((own, other),) = tflite.items(), ours.items()
    with pytest.raises(jd.OptionError) as caught:
        options(**tflite, **ours)
    assert str(caught.value) == (
        f"--{name}={value} and --{own}={other} are two names of one option with different "
        "values; give one"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"use_gpo": True}, "unknown flag 'use_gpo'; did you mean: use_gpu"),
        (
            {"jax_platform": "npu"},
            "flag 'jax_platform': expected 'gpu', 'tpu' or 'cpu', got 'npu'",
        ),
        ({"num_threads": "4"}, "flag 'num_threads': expected int, got '4'"),
        ({"num_threads": True}, "flag 'num_threads': expected int, got True"),
        ({"num_threads": 0}, "num_threads: must be -1 or at least 1, got 0"),
        ({"xnnpack_force_fp16": True}, "xnnpack_force_fp16: the stock interpreter's Python API"),
        (
            {"external_delegate_path": "a.b:C", "external_delegate_options": "k=v"},
            "external_delegate_options: expected key:value;key:value, got 'k=v' in 'k=v'",
        ),
        (
            {
                "external_delegate_path": "jaxdelegate:JaxDelegate",
                "external_delegate_options": "platfrm:cpu",
            },
            "external_delegate_path: unknown option 'platfrm'; did you mean: platform",
        ),
    ],
)
def test_mistakes_say_what_is_wrong(given: dict[str, object], message: str) -> None:
    with pytest.raises(jd.OptionError) as error:
        create_delegates(flag_values(**given))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a:b", {"a": "b"}),
        ("a:b;c:d;", {"a": "b", "c": "d"}),
        ("dir:c:/x; n : 1", {"dir": "c:/x", "n": "1"}),
    ],
)
def test_external_options(text: str, expected: dict[str, str]) -> None:
    assert builtin.external_options(text) == expected


def test_an_external_class_gets_its_options() -> None:
    (made,) = create_delegates(
        flag_values(
            external_delegate_path="jaxdelegate:JaxDelegate",
            external_delegate_options="platform:cpu;max_delegated_partitions:2",
        )
    )
    assert made.delegate.options == DelegateOptions(platform="cpu", max_delegated_partitions=2)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("lib/missing.so", "lib/missing.so: no such library"),
        ("missing_anywhere.so", "missing_anywhere.so: cannot open shared object file"),
    ],
)
def test_a_missing_library(path: str, message: str) -> None:
    with pytest.raises(OSError, match=message):
        create_delegates(flag_values(external_delegate_path=path))


def test_a_library_without_the_interface() -> None:
    with pytest.raises(jd.OptionError, match="it does not export tflite_plugin_create_delegate"):
        create_delegates(flag_values(external_delegate_path="libc.so.6"))


def test_a_cpu_does_not_replace_a_gpu() -> None:
    asked = {"use_gpu": True, "gpu_precision_loss_allowed": False}
    try:
        __import__("jax").devices("gpu")
    except RuntimeError:
        with pytest.raises(jd.OptionError, match=r"--use_gpu: platform: 'gpu' is not there.*cuda"):
            create_delegates(flag_values(**asked))
        asked["jax_platform"] = "cpu"
    (made,) = create_delegates(flag_values(**asked))
    assert made.provider.name == "GPU"
    assert made.delegate.options.platform in ("gpu", "cpu")


@pytest.mark.parametrize(
    ("given", "host", "delegated"),
    [
        ({}, "jaxdelegate.interpreter", True),
        ({"use_jax": False}, "jaxdelegate.interpreter", False),
        ({"interpreter": "litert"}, "ai_edge_litert.interpreter", True),
        ({"use_xnnpack": True}, "ai_edge_litert.interpreter", True),
        ({"use_xnnpack": False, "num_threads": 1}, "ai_edge_litert.interpreter", False),
    ],
)
def test_the_interpreter_that_flags_request(
    given: dict[str, object], host: str, delegated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC", "1")
    values = flag_values(**given)
    delegates = [row.delegate for row in create_delegates(values)]
    model = mobilenet_v1(size=32, width=0.25)
    interpreter = providers.open_interpreter(values, model, delegates)
    interpreter.allocate_tensors()
    x = np.ones((1, 32, 32, 3), np.float32)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    assert type(interpreter).__module__ == host
    output = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert np.isclose(output.sum(), 1, atol=1e-4)
    ran = [row["op_name"] for row in interpreter._get_ops_details()]
    if host == "ai_edge_litert.interpreter":
        assert ("DELEGATE" in ran) is delegated
    else:
        assert bool(delegates) is delegated


@pytest.mark.parametrize("given", [{"use_xnnpack": True}, {"interpreter": "litert"}])
def test_a_bad_model_is_a_model_error_in_either_host(
    given: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "bad.tflite"
    path.write_bytes(b"not a model")
    with pytest.raises(jd.ModelError):
        providers.open_interpreter(flag_values(**given), path, [])


def test_our_interpreter_rejects_xnnpack() -> None:
    values = flag_values(use_xnnpack=True, interpreter="jaxdelegate")
    with pytest.raises(jd.OptionError, match="use_xnnpack needs the stock interpreter"):
        providers.open_interpreter(values, b"", [])


def test_threads_reach_xla_only_before_jax_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NPROC", raising=False)
    providers.use_threads(2)
    assert "num_threads=2 has no effect on XLA" in caplog.text
    assert "NPROC" not in providers.os.environ
    monkeypatch.delitem(sys.modules, "jax")
    providers.use_threads(2)
    assert providers.os.environ["NPROC"] == "2"


def test_installed_packages_bring_providers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    info = tmp_path / "adder-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adder\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[jaxdelegate.delegate_providers]\nadd = adder_module:Provider\n"
        "gone = adder_module:Missing\n"
    )
    module = types.ModuleType("adder_module")
    module.Provider = AddProvider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "adder_module", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    providers._load_installed.cache_clear()
    assert names(use_add=True) == ["ADD"]
    assert "delegate provider 'gone' (adder_module:Missing)" in caplog.text


def test_a_flag_must_fit_on_a_command_line() -> None:
    with pytest.raises(jd.OptionError, match="expected bool, int, float or str"):
        Flag("x", dict)
    with pytest.raises(jd.OptionError, match="letters, digits and _ only"):
        Flag("--x", int)


def test_given_flags_keep_their_order() -> None:
    values = flag_values(use_jax=True, num_threads=-1)
    assert list(values.given().items()) == [("use_jax", True), ("num_threads", -1)]
    assert values.is_set("num_threads")
    assert not values.is_set("use_gpu")
    assert values.use_gpu is False
    with pytest.raises(AttributeError, match="no flag 'use_nnapi' is declared"):
        _ = values.use_nnapi


def test_flags_may_be_tuples_as_absl_takes_them() -> None:
    class Tuples(AddProvider):
        name = "TUPLES"

        def flags(self) -> list[tuple[object, ...]]:  # type: ignore[override]
            return [
                ("use_tuples", False, "Use it."),
                ("tuple_text", None, "A text."),
                ("tuple_speed", int, 3, "How fast."),
            ]

    assert providers.declared(Tuples()) == [
        Flag("use_tuples", bool, False, "Use it."),
        Flag("tuple_text", str, None, "A text."),
        Flag("tuple_speed", int, 3, "How fast."),
    ]
