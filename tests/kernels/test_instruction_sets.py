"""Which instruction set the kernels use, and that no other code holds its instructions.

None of it needs the processor that it speaks of: `make emulate` runs the library as several others.
"""

import collections
import ctypes
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

import jaxdelegate as jd
from jaxdelegate.cache.environment import environment_parts
from jaxdelegate.kernels import library, processor
from jaxdelegate.kernels.processor import INSTRUCTION_SETS, MAX_CPU_ISA, allowed_features

# The values of enum Feature in kernels/cpu.h.
FEATURES = {
    name: 1 << i
    for i, name in enumerate(
        (
            *("avx2", "fma", "avxvnni", "avx512f", "bw", "dq", "vl", "avx512vnni", "avx512bf16"),
            "f16c",
        )
    )
}
HASWELL = ("avx2", "fma", "f16c")
SKYLAKE_X = (*HASWELL, "avx512f", "bw", "dq", "vl")
CASCADE_LAKE = (*SKYLAKE_X, "avx512vnni")
PROCESSORS = {
    "nehalem": ((), None),
    "avx2 without fma": (("avx2", "f16c"), None),
    "avx2 without float16": (("avx2", "fma"), None),
    "haswell": (HASWELL, "avx2"),
    "alder lake": ((*HASWELL, "avxvnni"), "avxvnni"),
    "knights landing": ((*HASWELL, "avx512f"), "avx512f"),
    "skylake-x": (SKYLAKE_X, "avx512f"),
    "cascade lake": (CASCADE_LAKE, "avx512vnni"),
    "zen 4": ((*CASCADE_LAKE, "avx512bf16"), "avx512bf16"),
    "sapphire rapids": ((*CASCADE_LAKE, "avx512bf16", "avxvnni"), "avx512bf16"),
    "avx512 without avx2": (("fma", "f16c", "avx512f", "bw", "dq", "vl", "avx512vnni"), None),
    "bfloat16 without vnni": ((*SKYLAKE_X, "avx512bf16"), "avx512f"),
}


def opened() -> ctypes.CDLL:
    found = library.opened(library.LIBRARY)
    found.jaxdelegate_instruction_set_name.restype = ctypes.c_char_p
    found.jaxdelegate_instruction_set_name.argtypes = [ctypes.c_long]
    found.jaxdelegate_select_instruction_set.restype = ctypes.c_char_p
    found.jaxdelegate_select_instruction_set.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    found.jaxdelegate_features_of.restype = ctypes.c_uint32
    return found


def selected(names: tuple[str, ...], most: str | None = None) -> str | None:
    mask = sum(FEATURES[name] for name in names)
    limit = None if most is None else most.encode()
    found: bytes | None = opened().jaxdelegate_select_instruction_set(mask, limit)
    return None if found is None else found.decode()


# ---- the choice


@pytest.mark.usefixtures("built")
def test_the_library_has_the_sets_that_the_environment_can_name() -> None:
    count = len(INSTRUCTION_SETS)
    names = [opened().jaxdelegate_instruction_set_name(i) for i in range(count)]
    assert names == [name.encode() for name in INSTRUCTION_SETS[:0:-1]] + [None]
    assert opened().jaxdelegate_instruction_set_name(-1) is None


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", PROCESSORS)
def test_the_best_set_is_chosen(name: str) -> None:
    features, best = PROCESSORS[name]
    assert selected(features) == best


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("most", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", PROCESSORS)
def test_with_a_limit_the_best_set_within_it_is_chosen(name: str, most: str) -> None:
    features, _ = PROCESSORS[name]
    older = INSTRUCTION_SETS[1 : INSTRUCTION_SETS.index(most) + 1]
    wanted = [s for s in older if set(needs(s)) <= set(features)]
    assert selected(features, most) == (wanted[-1] if wanted else None)


def needs(name: str) -> tuple[str, ...]:
    return {
        "avx2": HASWELL,
        "avxvnni": (*HASWELL, "avxvnni"),
        "avx512f": (*HASWELL, "avx512f"),
        "avx512vnni": CASCADE_LAKE,
        "avx512bf16": (*CASCADE_LAKE, "avx512bf16"),
    }[name]


class Registers(ctypes.Structure):
    """CpuRegisters of kernels/cpu.h."""

    _fields_ = [
        *(
            (name, ctypes.c_uint32)
            for name in ("leaf1_ecx", "leaf7_ebx", "leaf7_ecx", "leaf7_1_eax")
        ),
        ("xcr0", ctypes.c_uint64),
    ]


FMA, OSXSAVE, AVX, F16C, AVX2 = 1 << 12, 1 << 27, 1 << 28, 1 << 29, 1 << 5
F, DQ, BW, VL, VNNI = 1 << 16, 1 << 17, 1 << 30, 1 << 31, 1 << 11
AVX_VNNI, BF16 = 1 << 4, 1 << 5
EVERYTHING = (FMA | OSXSAVE | AVX | F16C, AVX2 | F | DQ | BW | VL, VNNI, AVX_VNNI | BF16)
XMM, YMM, ZMM = 0x2, 0x4, 0xE0


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("registers", "xcr0", "wanted"),
    [
        (EVERYTHING, XMM | YMM | ZMM, tuple(FEATURES)),
        # Registers that the operating system does not save cannot be used.
        (EVERYTHING, XMM | YMM, ("avx2", "fma", "avxvnni", "f16c")),
        (EVERYTHING, XMM | YMM | 0x60, ("avx2", "fma", "avxvnni", "f16c")),
        (EVERYTHING, XMM, ()),
        (EVERYTHING, YMM | ZMM, ()),
        ((FMA | AVX, *EVERYTHING[1:]), XMM | YMM | ZMM, ()),
        ((FMA | OSXSAVE, *EVERYTHING[1:]), XMM | YMM | ZMM, ()),
        ((OSXSAVE | AVX, AVX2, 0, 0), XMM | YMM, ("avx2",)),
        ((FMA | OSXSAVE | AVX, 0, 0, 0), XMM | YMM, ("fma",)),
        ((FMA | OSXSAVE | AVX, AVX2 | F, 0, 0), XMM | YMM | ZMM, ("avx2", "fma", "avx512f")),
        ((0, 0, 0, 0), 0, ()),
    ],
)
def test_features_need_the_processor_and_the_operating_system(
    registers: tuple[int, ...], xcr0: int, wanted: tuple[str, ...]
) -> None:
    found = opened().jaxdelegate_features_of(ctypes.byref(Registers(*registers, xcr0)))
    assert {name for name, bit in FEATURES.items() if found & bit} == set(wanted)


# ---- the environment


@pytest.fixture
def restored() -> Iterator[None]:
    before = library.in_use()
    yield
    opened().jaxdelegate_limit_instruction_set(before.encode())
    library.bfloat16_gain.cache_clear()


@pytest.mark.usefixtures("built")
@pytest.mark.usefixtures("restored")
def test_the_limit_holds_on_this_processor() -> None:
    best = library.in_use()
    for most in INSTRUCTION_SETS:
        assert opened().jaxdelegate_limit_instruction_set(most.encode())
        found = library.in_use()
        assert INSTRUCTION_SETS.index(found) <= INSTRUCTION_SETS.index(most)
        assert most != best or found == best
        library.bfloat16_gain.cache_clear()
        assert (library.bfloat16_gain() > 0) == library.multiplies_bfloat16()
    assert not opened().jaxdelegate_limit_instruction_set(b"avx3")
    assert library.in_use() == found


_DELEGATED = """
import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
delegate = jd.JaxDelegate(platform="cpu")
interpreter = jd.Interpreter(
    model_content=mobilenet_v1(size=32, width=0.25), experimental_delegates=[delegate]
)
interpreter.allocate_tensors()
calls = "jaxdelegate.call_batch" in delegate.partitions()[0].program.executable.as_text()
print(delegate.report().remark, calls)
"""


def printed(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _DELEGATED],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({MAX_CPU_ISA: "avx2"}, "Native kernels: avx2. True"),
        (
            {MAX_CPU_ISA: "none"},
            "Native kernels: none, XLA computes all: "
            f"native kernels are disabled by {MAX_CPU_ISA}=none. False",
        ),
        ({"JAXDELEGATE_NATIVE_KERNELS": "0"}, "Native kernels: off; XLA computes all. False"),
    ],
)
def test_programs_call_kernels_within_the_limit_of_the_environment(
    environment: dict[str, str], said: str
) -> None:
    assert printed(**environment).stdout.strip() == said


@pytest.mark.slow
def test_an_unknown_limit_is_an_error() -> None:
    done = printed(**{MAX_CPU_ISA: "avx3"})
    wanted = (
        "OptionError: JAXDELEGATE_MAX_CPU_ISA: expected one of none, avx2, avxvnni, avx512f, "
        "avx512vnni, avx512bf16, got 'avx3'"
    )
    assert done.returncode != 0
    assert wanted in done.stderr


def test_an_unclear_switch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXDELEGATE_NATIVE_KERNELS", "maybe")
    with pytest.raises(
        jd.OptionError, match=r"JAXDELEGATE_NATIVE_KERNELS: must be 0 or 1, got 'maybe'"
    ):
        jd.JaxDelegate(platform="cpu")
    assert jd.JaxDelegate(platform="cpu", native_kernels=False)  # the environment is not read


@pytest.mark.usefixtures("no_native_kernels")
def test_the_switch_can_insist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not jd.JaxDelegate(platform="cpu").lowering_context.kernels.cpu
    monkeypatch.setenv("JAXDELEGATE_NATIVE_KERNELS", "1")
    with pytest.raises(jd.OptionError, match="native_kernels: absent is missing"):
        jd.JaxDelegate(platform="cpu")


def test_features_newer_than_a_limit_are_hidden() -> None:
    newest = ("avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile")
    skylake_x = ("sse2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")
    sapphire_rapids = frozenset(skylake_x + newest)
    assert allowed_features(sapphire_rapids, None) == sapphire_rapids
    assert allowed_features(sapphire_rapids, "none") == {"sse2", "avx"}
    assert allowed_features(sapphire_rapids, "avx2") == {"sse2", "avx", "avx2", "fma"}
    assert "avx512_vnni" in allowed_features(sapphire_rapids, "avx512vnni")
    assert not allowed_features(sapphire_rapids, "avx512vnni") & {"avx512_bf16", "amx_bf16"}
    assert sapphire_rapids - allowed_features(sapphire_rapids, "avx512bf16") == {
        "amx_bf16",
        "amx_tile",
    }


def test_the_limit_belongs_to_the_key_of_stored_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    (device, *_) = jax.devices("cpu")
    monkeypatch.delenv(MAX_CPU_ISA, raising=False)
    before = environment_parts(device)
    monkeypatch.setenv(MAX_CPU_ISA, "avx2")
    after = environment_parts(device)
    assert {name for name in before if before[name] != after[name]} == {"max_cpu_isa"}


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("x86_64", "absent.so is missing, .* record of a build.* pip install --force-reinstall"),
        ("aarch64", "absent.so is for x86-64 processors, and this is aarch64$"),
    ],
)
def test_without_a_library_the_message_has_a_remedy(
    machine: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "MACHINE", machine)
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "absent.so")
    assert re.match(said, library.why_not() or "")


# ---- the disassembly

_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>.*)>:$")
_INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\t(?P<text>.*)$")
_OF_A_SET = re.compile(r"kernels::(?P<set>avx2|avxvnni|avx512f|avx512vnni|avx512bf16)::")
_PREFIXES = re.compile(r"^(?:(?:rep[nz]?|repnz|lock|notrack|bnd|data16|cs|ds|es|\{\w+\})\s+)+")

# AVX instructions have names with v, and wide registers have distinct names.
_WIDE = re.compile(r"%[yz]mm\d|%k[0-7]\b")
_ZMM = re.compile(r"%zmm\d|%k[0-7]\b|%[xyz]mm(?:1[6-9]|2\d|3[01])\b")
_VECTOR = re.compile(r"^v(?!err|erw|mcall|mload|mread|mrun|mwrite|mxo)")
_SCALAR = re.compile(
    "^(andn|bextr|blsi|blsmsk|blsr|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|popcnt)[lq]?$"
)
_SSE3 = re.compile("^(addsubp[sd]|haddp[sd]|lddqu|movddup|movshdup|movsldup)$")
_BYTES = re.compile(r"^vpdp(?:busd|wssd)")
_BFLOAT16 = re.compile(r"bf16|^vcvtne2?ps2?pbh|^vdpbf16ps")
_BW_DQ = re.compile(r"^vpmov(?:m2[bwdq]|[bwdq]2m)|^vmovdqu(?:8|16)\b|^vpmullq|^vcvt\w*qq")


def is_allowed(of: str | None, name: str, text: str) -> bool:
    """Whether an instruction may be in a function of a set; None: in other functions."""
    is_vector = bool(_VECTOR.match(name) or _WIDE.search(text))
    if of is None:
        return not (is_vector or _SCALAR.match(name) or _SSE3.match(name))
    if of in ("avx2", "avxvnni"):
        return not _ZMM.search(text) and (of == "avxvnni" or not _BYTES.match(name))
    if of == "avx512f":
        return not (_BYTES.match(name) or _BFLOAT16.search(name) or _BW_DQ.match(name))
    return not (_BYTES if of == "avx512bf16" else _BFLOAT16).search(name)


def disassembly(path: Path) -> Iterator[tuple[str, str]]:
    """Every instruction, with the function that contains it."""
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    function = ""
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            function = found["name"]
        elif found := _INSTRUCTION.match(line):
            yield function, _PREFIXES.sub("", found["text"].strip())


def wrong(path: Path) -> tuple[list[str], collections.Counter[str | None]]:
    """The misplaced instructions, and the number of instructions in the functions of each set."""
    found, counts = [], collections.Counter[str | None]()
    for function, text in disassembly(path):
        match = _OF_A_SET.search(function)
        of = None if match is None else match["set"]
        counts[of] += 1
        if not is_allowed(of, text.split(maxsplit=1)[0], text):
            found.append(f"{function}: {text}")
    return found, counts


needs_objdump = pytest.mark.skipif(
    shutil.which("objdump") is None, reason="objdump (binutils) is not there"
)


@pytest.mark.usefixtures("built")
@needs_objdump
def test_instructions_of_a_set_are_only_in_its_functions() -> None:
    found, counts = wrong(library.LIBRARY)
    assert found == []
    assert counts[None] > 1000
    assert {name: counts[name] > 1000 for name in INSTRUCTION_SETS[1:]} == dict.fromkeys(
        INSTRUCTION_SETS[1:], True
    )


_MIXED = """
namespace kernels {
namespace avx2 {
__attribute__((target("%s"))) float widest(const float* x) {
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += x[i] * x[i];
  return sum;
}
}
__attribute__((target("%s"))) float outside(const float* x) {
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += x[i] * x[i];
  return sum;
}
}
"""


@needs_objdump
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not there")
@pytest.mark.parametrize(
    ("inside", "outside", "names"),
    [
        ("avx2,fma", "sse2", set()),
        ("avx2,fma", "avx2,fma", {"kernels::outside(float const*)"}),
        ("avx512f", "sse2", {"kernels::avx2::widest(float const*)"}),
    ],
)
def test_the_check_finds_a_misplaced_instruction(
    inside: str, outside: str, names: set[str], tmp_path: Path
) -> None:
    source, built = tmp_path / "mixed.cc", tmp_path / "libmixed.so"
    source.write_text(_MIXED % (inside, outside))
    flags = ["-O3", "-ffast-math", "-mprefer-vector-width=512", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, str(source), "-o", str(built)], check=True)
    found, _ = wrong(built)
    assert {line.partition(": ")[0] for line in found} == names


@pytest.mark.usefixtures("built")
@needs_objdump
def test_loading_the_library_runs_no_code_of_a_set() -> None:
    """Tables of functions are constants; code that runs on loading is not in the files of sets."""
    functions = {function for function, _ in disassembly(library.LIBRARY)}
    starts = [name for name in functions if name.startswith("_GLOBAL__sub_I")]
    assert not [name for name in starts if "avx" in name.lower()]


def test_cores_are_counted_on_systems_without_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For instance on macOS."""
    assert processor.core_count() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(processor, "os", types.SimpleNamespace(cpu_count=lambda: 10))
    assert processor.core_count() == 10
    monkeypatch.setattr(processor, "os", types.SimpleNamespace(cpu_count=lambda: None))
    assert processor.core_count() == 1
