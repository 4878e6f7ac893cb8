"""Kernels of a program, read from its text."""

from typing import Any

import pytest

# XLA's text without metadata: a loop, whose condition and body are computations.
PROGRAM = """\
HloModule jit_f, is_scheduled=true

%fused_convert (param_0: f32[4,8]) -> f16[4,8] {
  %param_0 = f32[4,8]{1,0} parameter(0)
  ROOT %convert.1 = f16[4,8]{1,0} convert(%param_0)
}

%region_body (arg: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %arg = (s32[], f32[4,8]{1,0}) parameter(0)
  %gte.1 = f32[4,8]{1,0} get-tuple-element(%arg), index=1
  %loop_add_fusion = f32[4,8]{1,0} fusion(%gte.1), kind=kLoop, calls=%fused_convert
  ROOT %tuple.1 = (s32[], f32[4,8]{1,0}) tuple(%gte.1, %loop_add_fusion)
}

%region_condition (arg.1: (s32[], f32[4,8])) -> pred[] {
  %arg.1 = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %wrapped_compare = pred[] fusion(%arg.1), kind=kLoop, calls=%fused_convert
}

ENTRY %main.1 (x: f32[4,8], w: f16[2,3,3,8]) -> f16[4,8] {
  %x = f32[4,8]{1,0} parameter(0), sharding={mesh[], [{}, {}]}
  %w = f16[2,3,3,8]{3,2,1,0} parameter(1)
  %constant_1 = f16[2]{0} constant({1, 2})
  %loop_convert_fusion = f16[4,8]{1,0} fusion(%x), kind=kLoop, calls=%fused_convert
  %wrapped_transpose.2 = f16[2,3,3,8]{3,2,1,0} fusion(%w), kind=kInput, calls=%fused_convert
  %cudnn-conv.1 = (f16[4,8]{1,0}, u8[16]{0}) custom-call(%loop_convert_fusion, \
%wrapped_transpose.2, %constant_1), custom_call_target="__cudnn$convBiasActivationForward"
  %gte = f16[4,8]{1,0} get-tuple-element(%cudnn-conv.1), index=0
  %cudnn-conv.2 = (f16[4,8]{1,0}, u8[0]{0}) custom-call(%gte, %w), \
custom_call_target="__cudnn$convForward"
  %gemm_fusion = f32[4,8]{1,0} fusion(%gte, /*index=1*/%x), kind=kCustom, calls=%fused_convert, \
backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}
  %bitcast.3 = f32[32]{0} bitcast(%gemm_fusion)
  %copy.1 = f32[32]{0} copy(%bitcast.3)
  %call.1 = f32[4,8]{1,0} custom-call(%x), custom_call_target="xla_ffi_python_cpu_callback"
  %tuple.2 = (s32[], f32[4,8]{1,0}) tuple(%constant_1, %x)
  %while.1 = (s32[], f32[4,8]{1,0}) while(%tuple.2), condition=%region_condition, \
body=%region_body
  ROOT %sort.1 = f16[4,8]{1,0} sort(%gte), dimensions={0}, to_apply=%fused_convert
}
"""


@pytest.fixture
def hlo_text() -> Any:
    return pytest.importorskip("hlo_text")


def test_what_each_kernel_is(hlo_text: Any) -> None:
    kinds = {kernel.name: kernel.kind for kernel in hlo_text.kernels(PROGRAM)}
    assert kinds == {
        "loop_convert_fusion": "elementwise",
        "wrapped_transpose.2": "layout",
        "cudnn-conv.1": "convolution with its end",
        "cudnn-conv.2": "convolution",
        "gemm_fusion": "matrix product",
        "copy.1": "layout",
        "call.1": "custom-call",
        "sort.1": "sort",
        "wrapped_compare": "elementwise",  # in the loop, counted once
        "loop_add_fusion": "elementwise",
    }
    counts = hlo_text.counts(hlo_text.kernels(PROGRAM))
    assert (counts["layout"], counts["elementwise"]) == (2, 3)


def test_what_each_kernel_moves(hlo_text: Any) -> None:
    of = {kernel.name: kernel for kernel in hlo_text.kernels(PROGRAM)}
    cast, conv, gemm = (of[n] for n in ("loop_convert_fusion", "cudnn-conv.1", "gemm_fusion"))
    assert (cast.read, cast.written, cast.float32) == (128, 64, 0)
    assert (conv.read, conv.written, conv.float32) == (64 + 288 + 4, 64 + 16, 0)
    assert (gemm.read, gemm.written, gemm.float32) == (64 + 128, 128, 128)
    assert of["copy.1"].read == 128  # through a bitcast


def test_calls_of_the_host(hlo_text: Any) -> None:
    found = hlo_text.kernels(PROGRAM)
    assert hlo_text.host_calls(found) == ["xla_ffi_python_cpu_callback"]
    assert hlo_text.host_calls([k for k in found if k.name != "call.1"]) == []


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]", 4),
        ("pred[7]{0}", 7),
        ("bf16[2,3]{1,0}", 12),
        ("f8e4m3fn[8]{0}", 8),
        ("(f32[2]{0}, u8[0]{0}, s64[1]{0})", 16),
        ("()", 0),
    ],
)
def test_bytes_of_a_shape(hlo_text: Any, shape: str, size: int) -> None:
    assert hlo_text.array_bytes(shape) == size


def test_wide_operations_and_products(hlo_text: Any) -> None:
    """All computations count; instructions that compute nothing do not."""
    assert (hlo_text.wide_operations(PROGRAM), hlo_text.products(PROGRAM)) == (0, 0)
    fused = """\
%fused (p: s64[4]) -> f16[4,8] {
  %p = s64[4]{0} parameter(0)
  %add.1 = s64[4]{0} add(%p, %p)
  %convert.2 = (f64[4]{0}, s32[]) convert(%add.1)
  %dot.1 = f32[4,8]{1,0} dot(%convert.2, %p)
  ROOT %convolution.1 = f16[4,8]{1,0} convolution(%dot.1, %p)
}

"""
    assert hlo_text.wide_operations(fused + PROGRAM) == 2
    assert hlo_text.products(fused + PROGRAM) == 2


def test_what_graphs_launch(hlo_text: Any) -> None:
    """The text is XLA:GPU's dump of thunks."""
    dump = """\
000: kCommandBuffer [source | sink]
    001: kCustomKernel [source       | next=003 (2)] loop_fusion grid: [128, 1, 1]
    002: kCuDnn        [prev=001 (1) | sink        ] kCuDnn
003: kConvolution [prev=000 (1) | sink] kConvolution
004: kWhile [prev=003 (1) | sink]
    005: kCommandBuffer [source | sink]
        006: kKernel [source | sink] fusion
    007: kKernel [source | sink] condition
"""
    assert hlo_text.captured(dump) == {"launches": 5, "captured": 3, "graphs": 2}
    with pytest.raises(ValueError, match="no thunk"):
        hlo_text.captured("")


def test_a_text_without_an_entry_is_refused(hlo_text: Any) -> None:
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo_text.kernels("HloModule nothing\n")


# What a decode step has: a row of a table, an update in place, a product; and on a TPU copies to
# and from its fast memory.
STEP = """\
HloModule jit_g, is_scheduled=true

%fused_gather (param_0: s8[1000,64], param_1: s32[1]) -> f32[1,64] {
  %param_0 = s8[1000,64]{1,0} parameter(0)
  %param_1 = s32[1]{0} parameter(1)
  %gather.1 = s8[1,64]{1,0} gather(%param_0, %param_1), offset_dims={1}
  ROOT %convert.1 = f32[1,64]{1,0} convert(%gather.1)
}

%fused_update (param_2: f32[128,64], param_3: f32[1,64], param_4: s32[]) -> f32[128,64] {
  %param_2 = f32[128,64]{1,0} parameter(0)
  %param_3 = f32[1,64]{1,0} parameter(1)
  %param_4 = s32[] parameter(2)
  ROOT %dus.1 = f32[128,64]{1,0} dynamic-update-slice(%param_2, %param_3, %param_4, %param_4)
}

%fused_dot (param_5: f32[1,64], param_6: f32[128,64]) -> f32[1,128] {
  %param_5 = f32[1,64]{1,0} parameter(0)
  %param_6 = f32[128,64]{1,0} parameter(1)
  ROOT %dot.1 = f32[1,128]{1,0} dot(%param_5, %param_6), rhs_contracting_dims={1}
}

ENTRY %main (table: s8[1000,64], id: s32[1], cache: f32[128,64], at: s32[], w: s8[32,64]) -> f32[] {
  %table = s8[1000,64]{1,0} parameter(0)
  %id = s32[1]{0} parameter(1)
  %cache = f32[128,64]{1,0} parameter(2)
  %at = s32[] parameter(3)
  %w = s8[32,64]{1,0} parameter(4)
  %row = f32[1,64]{1,0} fusion(%table, %id), kind=kLoop, calls=%fused_gather
  %new = f32[128,64]{1,0} fusion(%cache, %row, %at), kind=kLoop, calls=%fused_update
  %scores = f32[1,128]{1,0} fusion(%row, %new), kind=kInput, calls=%fused_dot
MORE}
"""
TPU = """\
  %copy-start = (s8[32,64]{1,0:T(8,128)S(1)}, s8[32,64]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%w)
  %copy-done = s8[32,64]{1,0:T(8,128)S(1)} copy-done(%copy-start)
  %half = ((s8[32,64]{1,0}), s8[16,64]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%w), slice={[0:16]}
"""
PALLAS = """\
  %own = f32[128,64]{1,0:T(8,128)} custom-call(%new, %row), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"0","bytes_accessed":"4096"}}}
"""
_ROW, _CACHE = 4 * 64, 4 * 128 * 64
_GATHERED = 64 + 4 + _ROW  # the row of the table, its id, the result
_UPDATED = _ROW + 4 + _ROW  # what is written, and where, and that it is
_MULTIPLIED = _ROW + _CACHE + 4 * 128


@pytest.mark.parametrize(("more", "moved"), [("", 0), (TPU, 32 * 64 + 16 * 64), (PALLAS, 4096)])
def test_what_a_step_moves(hlo_text: Any, more: str, moved: int) -> None:
    expected = _GATHERED + _UPDATED + _MULTIPLIED + moved
    assert hlo_text.traffic(STEP.replace("MORE", more)) == expected


IN_PLACE = """\
HloModule jit_f

ENTRY %main.1 (cache: f32[4,1024], new: f32[4,8]) -> (f32[4,1024], f16[8], f32[2]) {
  %cache = f32[4,1024]{1,0} parameter(0)
  %new = f32[4,8]{1,0} parameter(1)
  ROOT %call = (f32[4,1024]{1,0}, f16[8]{0}, f32[2]{0}) custom-call(%new, %cache, %new), \
custom_call_target="__gpu$xla.gpu.triton"ALIASES, api_version=API_VERSION_TYPED_FFI
}
"""


@pytest.mark.parametrize(
    ("aliases", "written"),
    [
        ("", 4 * 4096 + 16 + 8),
        (", output_to_operand_aliasing={{0}: (1, {})}", 16 + 8),
        (", output_to_operand_aliasing={{0}: (1, {}), {2}: (2, {})}", 16),
    ],
)
def test_arrays_changed_in_place_are_read_once(hlo_text: Any, aliases: str, written: int) -> None:
    text = IN_PLACE.replace("ALIASES", aliases)
    assert hlo_text.traffic(text) == 4 * 4096 + 2 * 128 + written


PRODUCTS = """\
HloModule jit_f

%fused (a: f16[4,8], b: f32[8,4]) -> f32[4,4] {
  %a = f16[4,8]{1,0} parameter(0)
  %b = f32[8,4]{1,0} parameter(1)
  ROOT %dot.1 = f32[4,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main.1 (x: f16[4,8], w: f32[8,4]) -> f32[4,4] {
  %x = f16[4,8]{1,0} parameter(0)
  %w = f32[8,4]{1,0} parameter(1)
  %short = f16[4,8]{1,0} custom-call(%x, %x, %x, %w), custom_call_target="__cudnn$fmhaSoftmax"
  %conv = (f16[4,8]{1,0}, u8[0]{0}) custom-call(%x, %x), custom_call_target="__cudnn$convForward"
  %sum = f16[4,8]{1,0} custom-call(%x, %x), custom_call_target="another"
  ROOT %product = f32[4,4]{1,0} fusion(%x, %w), kind=kCustom, calls=%fused
}
"""


def test_the_wider_operand_is_what_a_product_multiplies(hlo_text: Any) -> None:
    assert hlo_text.product_dtypes(PRODUCTS) == {"f16": 2, "f32": 1}
