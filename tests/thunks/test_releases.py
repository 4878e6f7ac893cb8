"""The releases of jaxlib whose programs are called directly, and what these programs look like."""

import functools
import mmap
import re
import tomllib
from pathlib import Path

import jaxlib
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from jaxlib import version

import jaxdelegate
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.kernels import library
from jaxdelegate.testing import Case, f32
from jaxdelegate.thunks import calls
from jaxdelegate.wire import varint

JAXLIB = Path(jaxlib.__file__).parent / "libjax_common.so"

# The fields that jaxdelegate/thunks reads, by message: what its numbers stand for.
FIELDS = {
    "xla/pjrt/proto/compile_options.proto": {
        "ExecutableAndOptionsProto": {"serialized_executable": 1},
    },
    "xla/service/cpu/executable.proto": {
        "CompilationResultProto": {
            "hlo_module": 1,
            "buffer_assignment": 2,
            "thunk_sequence": 6,
            "object_files": 8,
        },
        "ObjFileProto": {"contents": 1},
    },
    "xla/xla.proto": {"HloModuleProtoWithConfig": {"hlo_module": 1}},
    "xla/service/hlo.proto": {
        "HloModuleProto": {"computations": 3, "entry_computation_id": 6, "input_output_alias": 8},
        "HloComputationProto": {"instructions": 2, "id": 5, "root_id": 6},
        "HloInstructionProto": {
            "opcode": 2,
            "shape": 3,
            "literal": 8,
            "parameter_number": 9,
            "tuple_index": 13,
            "id": 35,
            "operand_ids": 36,
            "called_computation_ids": 38,
            "backend_config": 43,
        },
        "LogicalBufferProto": {"id": 1, "defined_at": 3},
        "LogicalBufferProto.Location": {"shape_index": 3, "instruction_id": 4},
        "BufferAllocationProto": {
            "index": 1,
            "size": 2,
            "is_thread_local": 3,
            "is_entry_computation_parameter": 5,
            "parameter_number": 6,
            "maybe_live_out": 7,
            "assigned": 9,
            "parameter_shape_index": 10,
            "is_constant": 12,
        },
        "BufferAllocationProto.Assigned": {"logical_buffer_id": 1, "offset": 2, "size": 3},
        "BufferAssignmentProto": {"logical_buffers": 1, "buffer_allocations": 3},
    },
    "xla/service/buffer_assignment.proto": {
        "BufferAllocationSliceProto": {"offset": 1, "size": 2, "buffer_allocation_index": 3},
    },
    "xla/xla_data.proto": {
        "ShapeProto": {"element_type": 2, "dimensions": 3, "tuple_shapes": 4, "layout": 5},
        "LayoutProto": {"minor_to_major": 1},
        "LiteralProto": {
            "shape": 1,
            "preds": 2,
            "u8s": 3,
            "s32s": 4,
            "s64s": 5,
            "u32s": 6,
            "u64s": 7,
            "f32s": 8,
            "f64s": 9,
            "f16s": 11,
            "bf16s": 13,
            "s8s": 15,
            "u16s": 16,
            "s16s": 17,
        },
    },
    "xla/backends/cpu/runtime/thunk.proto": {
        "ThunkSequenceProto": {"thunks": 1},
        "ThunkProto": {
            "kind": 1,
            "call_thunk": 3,
            "conditional_thunk": 4,
            "while_thunk": 10,
            "kernel_thunk": 11,
            "copy_thunk": 12,
            "custom_call_thunk": 16,
        },
        "ShapeBufferAllocationSliceProto": {"shape": 1, "slice": 2},
        "CallThunkProto": {"called_sequence": 1},
        "ConditionalThunkProto": {"branch_sequences": 1, "branch_index_buffer": 2},
        "WhileThunkProto": {
            "cond_sequence": 1,
            "body_sequence": 2,
            "trip_count": 3,
            "cond_buffer": 4,
        },
        "KernelThunkProto": {
            "kernel_name": 1,
            "num_workgroups": 2,
            "arguments_buffers": 5,
            "results_buffers": 6,
        },
        "CopyThunkProto": {"src_buffer_shape": 1, "dst_buffer_shape": 2},
        "CustomCallThunkProto": {
            "api_version": 1,
            "target_name": 2,
            "backend_config": 3,
            "op_buffers": 4,
        },
    },
}


@functools.cache
def described(path: str) -> dict[str, dict[str, int]]:
    """Numbers of fields by message and name, as the library itself describes one of its files."""
    with JAXLIB.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(bytes([10, len(path)]) + path.encode())
        assert start >= 0, f"{JAXLIB.name} has no description of {path}"
        end = _end(memoryview(data[start : start + (1 << 20)]))
        file_proto = FileDescriptorProto.FromString(data[start : start + end])
    messages = {m.name: m for m in file_proto.message_type}
    nested = {f"{name}.{n.name}": n for name, m in messages.items() for n in m.nested_type}
    return {
        name: {field.name: field.number for field in m.field}
        for name, m in {**messages, **nested}.items()
    }


def _end(data: memoryview) -> int:
    """Where a file's description ends: it has fields up to 14, of two wire types."""
    at = 0
    while data[at] >> 3 in range(1, 15) and data[at] & 7 in (0, 2):
        value, after = varint(data, at + 1)
        at = after + (value if data[at] & 7 == 2 else 0)
    return at


def test_this_release_is_covered() -> None:
    """A newer one that pip gives, within our range, has to be tried first."""
    assert version.__version_info__[:2] in calls.TESTED


def test_all_releases_of_our_range_are_covered() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (jaxlib_range,) = (one for one in project["dependencies"] if one.startswith("jaxlib"))
    first, end = map(int, re.fullmatch(r"jaxlib>=0\.(\d+),<0\.(\d+)", jaxlib_range).groups())
    assert [minor for _, minor in calls.TESTED] == list(range(first, end))


@pytest.mark.parametrize("path", FIELDS)
def test_numbers_of_fields(path: str) -> None:
    found = described(path)
    for message, fields in FIELDS[path].items():
        assert {name: found[message].get(name) for name in fields} == fields, message


@pytest.mark.usefixtures("built")
def test_processors_without_our_kernels_call_xlas_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's part for direct calls runs on every x86-64 processor."""
    monkeypatch.setattr(library, "why_not", lambda: "this processor lacks AVX2 or FMA")
    assert calls.why_not() is None


@pytest.mark.usefixtures("built")
def test_a_release_that_is_not_covered_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "__version_info__", (0, 99, 1))
    monkeypatch.setattr(version, "__version__", "0.99.1")
    content = Case("RELU", "", [f32(4)]).model()
    delegate = jaxdelegate.JaxDelegate()
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    for _ in range(5):
        interpreter.set_tensor(0, np.ones(4, np.float32))
        interpreter.invoke()
    why = "direct calls were tested with jaxlib 0.10 to 0.12, and this is 0.99.1"
    report = " ".join(str(delegate.report()).split())  # without its line breaks
    assert f"XLA's runtime runs all programs, small ones more slowly: {why}." in report
