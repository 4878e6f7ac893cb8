"""From a compiled program's text to operators."""

import jax
import jax.numpy as jnp
import pytest

from jaxdelegate.benchmark.hlo import read_program

# ruff: noqa: E501 (a program's text has its own line lengths)

TEXT = """\
HloModule jit_partition_0_4, entry_computation_layout={(f32[4,8]{1,0})->(f32[4,8]{1,0})}

%fused_computation (param_0: f32[4,8], param_1: f32[8]) -> f32[4,8] {
  %param_0 = f32[4,8]{1,0} parameter(0)
  %param_1 = f32[8]{0} parameter(1), metadata={op_name="jit(f)/MUL.9/x"}
  %broadcast.1 = f32[4,8]{1,0} broadcast(%param_1), dimensions={1}, metadata={op_name="jit(f)/CONV_2D.0/add"}
  %add.1 = f32[4,8]{1,0} add(%param_0, %broadcast.1), metadata={op_name="jit(f)/CONV_2D.0/add"}
  ROOT %max.1 = f32[4,8]{1,0} maximum(%add.1, %broadcast.1), metadata={op_name="jit(f)/RELU.1/max"}
}

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], /*index=1*/f32[4,8]{1,0}) parameter(0)
  %gte = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %spare = f32[2]{0} custom-call(), custom_call_target="y"
  %inner = f32[4,8]{1,0} sine(%gte), metadata={op_name="jit(f)/WHILE.3/body/SIN.0/sin"}
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%gte, %inner)
}

ENTRY %main (a: f32[4,8], w: f32[8,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %w = f32[8,8]{1,0} parameter(1)
  %dot.5 = f32[4,8]{1,0} dot(%a, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %fusion = f32[4,8]{1,0} fusion(%dot.5, %w), kind=kLoop, calls=%fused_computation, metadata={op_name="jit(f)/RELU.1/max"}
  %while.2 = (s32[], f32[4,8]{1,0}) while(%fusion), condition=%cond, body=%body, metadata={op_name="jit(f)/WHILE.3/while"}
  %copy.7 = bf16[4,8]{1,0:T(8,128)} copy(%while.2)
  ROOT %out = (f32[4,8]{1,0}, pred[3]{0}, s64[]) custom-call(%copy.7), custom_call_target="x", metadata={op_name="jit(f)/TFLite_Detection_PostProcess.4/call"}
}
"""
SCOPES = ("CONV_2D.0", "RELU.1", "WHILE.3", "TFLite_Detection_PostProcess.4")


@pytest.mark.parametrize(
    ("name", "scopes", "n_bytes"),
    [
        ("fusion", ("CONV_2D.0", "RELU.1"), 128),  # what it fused, in the model's order
        ("dot.5", ("CONV_2D.0",), 128),  # no metadata: its first reader's
        ("while.2", ("WHILE.3",), 132),  # a called subgraph's operators are the caller's
        ("inner", ("WHILE.3",), 128),
        ("spare", ("WHILE.3",), 8),  # neither users nor operands: its caller's
        ("copy.7", ("TFLite_Detection_PostProcess.4",), 64),
        ("out", ("TFLite_Detection_PostProcess.4",), 128 + 3 + 8),
    ],
)
def test_scopes_and_sizes(name: str, scopes: tuple[str, ...], n_bytes: int) -> None:
    instruction = read_program(TEXT, SCOPES)[name]
    assert instruction.scopes == scopes
    assert instruction.bytes == n_bytes


def test_control_flow_lists_its_instructions() -> None:
    program = read_program(TEXT, SCOPES)
    assert program["while.2"].is_control
    assert "inner" in program["while.2"].called
    assert not program["fusion"].is_control


def test_every_instruction_of_a_real_program_is_read() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("FULLY_CONNECTED.0"):
            y = x @ w
        with jax.named_scope("TANH.1+ADD.3"):
            y = jnp.tanh(y)
        with jax.named_scope("WHILE.2"):
            return jax.lax.fori_loop(0, 3, lambda _, v: jnp.sin(v) + 1, y)

    shapes = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 2
    text = jax.jit(function).lower(*shapes).compile().as_text()
    program = read_program(text, ("FULLY_CONNECTED.0", "TANH.1", "WHILE.2", "ADD.3"))
    assert len(program) == sum(" = " in line for line in text.splitlines())
    dots = [i for i in program.values() if "FULLY_CONNECTED.0" in i.scopes]
    assert any(i.bytes == 64 * 64 * 4 for i in dots)
    assert {s for i in program.values() for s in i.scopes} >= {"TANH.1", "ADD.3", "WHILE.2"}
