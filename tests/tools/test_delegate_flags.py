"""Providers' flags on a real command line."""

import subprocess
import sys

import pytest
from absl import flags

import jaxdelegate as jd
from jaxdelegate import providers
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.options import DelegateOptions
from jaxdelegate.tools import command_line, delegate_flags


def parsed(*arguments: str) -> flags.FlagValues:
    values = flags.FlagValues()
    command_line.define(providers.all_flags(), values, "delegates")
    values(["tool", *arguments])
    return values


def test_options_reach_the_delegate() -> None:
    (delegate,) = delegate_flags.delegates(
        parsed("--use_jax", "--jax_platform=cpu", "--nojax_enable_quant", "--jax_device_index=0")
    )
    assert delegate.options == DelegateOptions(platform="cpu", enable_quant=False)


def test_command_line_order_decides_who_is_first() -> None:
    external = "--external_delegate_path=jaxdelegate:JaxDelegate"

    def order(*arguments: str) -> list[str]:
        values = delegate_flags.read(parsed(*arguments))
        return [row.provider.name for row in providers.create_delegates(values)]

    assert order("--use_jax", external) == ["JAX", "EXTERNAL"]
    assert order(external, "--use_jax=true") == ["EXTERNAL", "JAX"]
    assert order("--use_jax", external, "--use_jax") == ["EXTERNAL", "JAX"]  # the last one counts


def test_what_was_given_is_reported_in_its_order() -> None:
    values = parsed("--num_threads=2", "--use_gpu", "--gpu_precision_loss_allowed=false")
    assert list(delegate_flags.read(values).given().items()) == [
        ("num_threads", 2),
        ("use_gpu", True),
        ("gpu_precision_loss_allowed", False),
    ]


def test_an_absl_flag_of_a_provider_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Provider:
        name = "ABSL"

        def flags(self) -> list[flags.Flag]:
            use = flags.BooleanFlag("use_absl", False, "Use it.")
            colors = flags.EnumFlag("absl_color", "red", "Its color.", ["red", "blue"])
            return [use, colors]

        def create(self, values: providers.FlagValues) -> object | None:
            return values.absl_color if values.use_absl else None

    providers.registered()
    monkeypatch.setattr(providers, "_PROVIDERS", list(providers._PROVIDERS))
    jd.register_delegate_provider(Provider())
    values = parsed("--absl_color=blue", "--use_absl")
    (row,) = providers.create_delegates(delegate_flags.read(values))
    assert row.delegate == "blue"
    assert delegate_flags.read(parsed()).given() == {}  # nothing stuck from the first parse
    with pytest.raises(flags.IllegalFlagValueError, match=r"<red\|blue>"):
        parsed("--absl_color=green")
    flag = {f.name: f for f in map(providers.as_flag, Provider().flags())}["absl_color"]
    assert flag == providers.Flag(
        "absl_color", str, "red", "<red|blue>: Its color.", ("red", "blue")
    )


def test_the_interpreter_has_the_delegates_applied() -> None:
    values = parsed("--jax_last_delegate_node_index=9")
    (delegate,) = delegates = delegate_flags.delegates(values)
    model = mobilenet_v1(size=32, width=0.25)
    interpreter = delegate_flags.interpreter(values, model, delegates)
    assert isinstance(interpreter, jd.Interpreter)
    assert len(delegate.report().delegated) == 10


def test_help_lists_every_flag() -> None:
    printed = parsed().get_help()
    declared = [flag for provider in providers.registered() for flag in provider.flags()]
    for flag in declared:
        shown = f"--[no]{flag.name}:" if flag.type is bool else f"--{flag.name}:"
        assert shown in printed
    assert len(declared) > 35


def test_declaring_flags_does_not_load_jax() -> None:
    code = (
        "import sys\nfrom absl import flags\nfrom jaxdelegate import providers\n"
        "from jaxdelegate.tools import command_line\n"
        "command_line.define(providers.all_flags(), flags.FlagValues(), 'delegates')\n"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
