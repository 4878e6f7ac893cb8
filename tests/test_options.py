import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions


def test_defaults_are_the_documented_ones() -> None:
    assert dataclasses.asdict(DelegateOptions()) == {
        "platform": None,
        "device_index": 0,
        "is_precision_loss_allowed": None,
        "inference_priority1": "max_precision",
        "inference_priority2": "auto",
        "inference_priority3": "auto",
        "inference_preference": "fast_single_answer",
        "compute_dtype": None,
        "accumulate_float32": None,
        "float32_operators": None,
        "enable_quant": True,
        "quant_mode": "auto",
        "rewrites": "all",
        "native_kernels": None,
        "max_delegated_partitions": 0,
        "min_nodes_per_partition": 0,
        "min_gain": 2.0,
        "first_delegate_node_index": 0,
        "last_delegate_node_index": 2**31 - 1,
        "require_full_delegation": False,
        "fallback_on_error": False,
        "serialization_dir": None,
        "max_programs": 16,
        "max_program_bytes": 1 << 30,
        "model_token": None,
        "donate_inputs": False,
        "rebatch": False,
        "pad_batch": False,
    }


def test_every_option_has_help() -> None:
    assert all(field.metadata["help"] for field in dataclasses.fields(DelegateOptions))


def test_unknown_option_names_the_closest() -> None:
    with pytest.raises(
        OptionError, match=r"unknown option 'max_partitions'.*max_delegated_partitions"
    ):
        DelegateOptions.of({"max_partitions": 1})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("platform", "gpus", "platform: expected 'gpu', 'tpu', 'cpu' or None, got 'gpus'"),
        ("device_index", "0", "device_index: expected int, got '0'"),
        ("device_index", -1, "device_index: must not be negative, got -1"),
        ("enable_quant", 1, "enable_quant: expected bool, got 1"),
        ("max_delegated_partitions", True, "max_delegated_partitions: expected int, got True"),
        ("quant_mode", None, "quant_mode: expected 'auto', 'float_view' or 'integer', got None"),
    ],
)
def test_wrong_values_are_rejected(name: str, value: object, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        DelegateOptions.of({name: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "priorities",
    [
        ("auto", "auto", "auto"),
        ("auto", "max_precision", "auto"),
        ("max_precision", "auto", "min_latency"),
        ("max_precision", "max_precision", "auto"),
    ],
)
def test_priorities_that_v2_rejects(priorities: tuple[str, str, str]) -> None:
    with pytest.raises(OptionError, match="inference_priority"):
        DelegateOptions.of(
            dict(
                zip(
                    ("inference_priority1", "inference_priority2", "inference_priority3"),
                    priorities,
                    strict=True,
                )
            )
        )


@pytest.mark.parametrize("dtype", [np.float16, np.dtype(np.float16), jnp.float16, "float16"])
def test_a_dtype_counts_as_its_name(dtype: Any) -> None:
    options = DelegateOptions.of({"compute_dtype": dtype})
    assert options == DelegateOptions(compute_dtype="float16")
    assert isinstance(options.compute_dtype, str)
    assert DelegateOptions(compute_dtype=jnp.bfloat16).compute_dtype == "bfloat16"
    with pytest.raises(OptionError, match=r"compute_dtype: expected 'float32', .*, got 'int8'"):
        DelegateOptions(compute_dtype=np.int8)


def test_an_instance_with_overrides() -> None:
    base = DelegateOptions(min_nodes_per_partition=3)
    assert DelegateOptions.of(base, enable_quant=False) == DelegateOptions(
        min_nodes_per_partition=3, enable_quant=False
    )


def test_strings_as_load_delegate_gives_them() -> None:
    options = DelegateOptions.from_strings(
        {
            "platform": "cpu",
            "enable_quant": "False",
            "max_delegated_partitions": "2",
            "model_token": "none",
        }
    )
    assert options == DelegateOptions(
        platform="cpu", enable_quant=False, max_delegated_partitions=2
    )


def test_invalid_strings() -> None:
    with pytest.raises(OptionError, match="device_index: expected int, got 'first'"):
        DelegateOptions.from_strings({"device_index": "first"})
    with pytest.raises(OptionError, match="enable_quant: expected bool, got 'maybe'"):
        DelegateOptions.from_strings({"enable_quant": "maybe"})


def test_help_shows_every_option() -> None:
    text = DelegateOptions.__doc__ or ""
    for field in dataclasses.fields(DelegateOptions):
        assert f"    {field.name}: {field.metadata['help']} Default: {field.default!r}.\n" in (
            text + "\n"
        )


def test_a_delegate_shows_what_was_given() -> None:
    assert repr(jd.JaxDelegate(platform="cpu")) == "JaxDelegate(platform='cpu')"
    assert repr(jd.JaxDelegate(platform="cpu", quant_mode="integer")) == (
        "JaxDelegate(platform='cpu', quant_mode='integer')"
    )


def test_the_page_of_options_is_current() -> None:
    docs = Path(__file__).parents[1] / "docs"
    spec = importlib.util.spec_from_file_location("generate_options", docs / "generate_options.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (docs / "options.md").read_text() == generator.page(), (
        "run `python docs/generate_options.py`"
    )
