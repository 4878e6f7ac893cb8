"""The kernels of an optimized XLA program and their traffic, read from its text.

Every instruction except bookkeeping launches a kernel. Bodies of loops and branches count once. A
kernel's bytes are those of its whole operands and results: a gather that reads a few rows of a
table counts the whole table.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence

# These launch no kernel.
_BOOKKEEPING = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
        *("while", "conditional", "call", "async-start", "async-update", "async-done"),
    )
)
# Kinds of kernels by a custom call's target, a fusion's backend or an instruction's name; the first
# match in its line counts.
_KINDS = (
    ("convolution with its end", "__cudnn$convBiasActivationForward"),
    ("convolution", "__cudnn$conv"),
    ("attention", "__cudnn$fmha"),
    ("own kernel", "__gpu$xla.gpu.triton"),
    ("matrix product", "__triton_gemm"),
    ("matrix product", "__triton_nested_gemm"),
    ("matrix product", "__cublas$"),
    ("matrix product", "__cudnn$fusion"),
    ("tiled fusion", '"kind":"__triton'),
    ("reduction", "kind=kInput"),
    ("elementwise", "kind=kLoop"),
)
_LAYOUT = re.compile(r"copy|(wrapped_)?transpose(_copy)?_?(fusion)?(\.\d+)*")

# Thunks of XLA:GPU that hold others; a command buffer is a CUDA graph.
_GRAPH, _HOLDERS = "kCommandBuffer", ("kSequential", "kWhile", "kConditional", "kAsyncStart")
_THUNK = re.compile(r"^( *)\d+: (k\w+)")
_WIDE = re.compile(r"\b[suf]64\[")
_PRODUCTS = ("convolution", "dot")
_CALLED_PRODUCT = re.compile(r'custom_call_target="__(cudnn\$(conv|fmha)|cublas\$)')

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+)(\d*)(?:e\dm\d\w*)?\[([\d,]*)\]")
_CALLED = re.compile(r"(?:body|condition|true_computation|false_computation|to_apply)=%([\w.-]+)")
_BRANCHES = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
        name: of the instruction.
        kind: what it does.
        read: bytes of its operands.
        written: bytes of its results.
        float32: bytes of its results that are float32.
        target: of a custom call; else "".
        opcode: of the instruction.
    """

    name: str
    kind: str
    read: int
    written: int
    float32: int
    target: str = ""
    opcode: str = ""


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    rest: str  # operands and attributes

    @property
    def operands(self) -> Sequence[str]:
        return re.findall(r"%([\w.-]+)", self.rest.split(")", 1)[0])

    @property
    def called(self) -> Iterator[str]:
        """The computations that it calls: a loop's body, branches."""
        if self.opcode not in ("while", "conditional", "call"):
            return
        yield from _CALLED.findall(self.rest)
        for names in _BRANCHES.findall(self.rest):
            yield from re.findall(r"%([\w.-]+)", names)


def kernels(hlo: str) -> list[Kernel]:
    """The kernels of a program, in the order of its text.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations, entry = _computations(hlo)
    if entry is None:
        raise ValueError("no ENTRY computation in the program's text")
    waiting, seen, found = [entry], {entry}, list[Kernel]()
    while waiting:
        body = computations.get(waiting.pop(), ())
        shapes = {i.name: i.shape for i in body}
        found += [_kernel(i, shapes) for i in body if i.opcode not in _BOOKKEEPING]
        called = [name for i in body for name in i.called if name not in seen]
        seen.update(called)
        waiting += dict.fromkeys(called)
    return found


def traffic(hlo: str) -> int:
    """The bytes that all kernels read and write in a device's memory; loops count once.

    Of an operand that a kernel only picks rows from, these count, and of an array that it updates
    in place, the update; of one that a custom call updates, what it writes is not known, and does
    not count. Copies to and from the fast memory of a TPU's core, `S(1)`, count by their
    end in the device's memory. A kernel in Pallas counts by its own estimate, if it has one.
    """
    computations, entry = _computations(hlo)
    waiting, seen, total = [entry or ""], {entry}, 0
    while waiting:
        body = computations.get(waiting.pop(), ())
        by_name = {i.name: i for i in body}
        total += sum(_moved(i, by_name, computations) for i in body)
        called = [name for i in body for name in i.called if name not in seen]
        seen.update(called)
        waiting += dict.fromkeys(called)
    return total


_DONE = ("copy-done", "slice-done", "async-done")  # counted where they start
_WITH_LAYOUT = re.compile(r"\w+\[[\d,]*\](?:\{[^}]*\})?")
_PICKS, _UPDATES = ("gather", "dynamic-slice", "slice"), ("dynamic-update-slice", "scatter")
_SAME = ("bitcast", "reshape", "copy", "convert")
_ESTIMATE = re.compile(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"')


def _moved(
    kernel: _Instruction,
    by_name: dict[str, _Instruction],
    computations: dict[str, list[_Instruction]],
) -> int:
    if kernel.opcode in _BOOKKEEPING - {"async-start"} or kernel.opcode in _DONE:
        return 0
    operands = [by_name[name].shape if name in by_name else "" for name in kernel.operands]
    if kernel.opcode in ("copy-start", "slice-start"):
        # (destination, source, context), or ((source), destination, context)
        first, second, *_ = _WITH_LAYOUT.findall(kernel.shape)
        source, target = (second, first) if kernel.opcode == "copy-start" else (first, second)
        read = array_bytes(target) if _in_memory(source) else 0
        return read + _in_memory(target)
    if (estimate := _ESTIMATE.search(kernel.rest)) is not None:
        return int(estimate[1])
    called = re.search(r"calls=%([\w.-]+)", kernel.rest)
    inner = computations.get(called[1], []) if called else [kernel]
    parameters = {
        int(number[1]): i.name
        for i in inner
        if i.opcode == "parameter" and (number := re.match(r"(\d+)", i.rest)) is not None
    }
    if not called:
        parameters = dict(enumerate(kernel.operands))
    read = [_read(parameters.get(n, ""), shape, inner) for n, shape in enumerate(operands)]
    updates = [i for i in inner if i.opcode in _UPDATES]
    if updates and array_bytes(kernel.shape) >= max(map(array_bytes, operands), default=0):
        shapes = {i.name: i.shape for i in inner} | {n: i.shape for n, i in by_name.items()}
        written = sum(
            array_bytes(shapes.get(u.operands[-1 if u.opcode == "scatter" else 1], ""))
            for u in updates
        )
        return sum(read) + written
    return sum(read) + _in_memory(kernel.shape) - _aliased(kernel)


def _aliased(kernel: _Instruction) -> int:
    """The bytes of a custom call's results that are operands, changed in place."""
    aliases = re.search(r"output_to_operand_aliasing=\{(.*?\))\}", kernel.rest)
    places = re.findall(r"\{(\d*)\}: ", aliases[1]) if aliases is not None else []
    arrays = [m[0] for m in _ARRAY.finditer(kernel.shape)]
    return sum(array_bytes(arrays[int(place or 0)]) for place in places)


def _read(parameter: str, shape: str, inner: Sequence[_Instruction]) -> int:
    """The bytes that a kernel reads of an operand."""
    if not _in_memory(shape):
        return 0
    names = {parameter}
    users = [i for i in inner if names & {*i.operands}]
    while users and all(i.opcode in _SAME for i in users):
        names = {i.name for i in users}
        users = [i for i in inner if names & {*i.operands}]
    if users and all(i.opcode in _PICKS for i in users):
        return min(sum(array_bytes(i.shape) for i in users), array_bytes(shape))
    if users and all(i.opcode in _UPDATES and i.operands[0] in names for i in users):
        return 0
    return array_bytes(shape)


def _in_memory(shape: str) -> int:
    """The bytes of the arrays of a shape that are in the device's memory."""
    return array_bytes(re.sub(r"\w+\[[\d,]*\]\{[^}]*S\(\d\)[^}]*\}", "", shape))


def counts(found: Sequence[Kernel]) -> dict[str, int]:
    """How many kernels there are of each kind."""
    return dict(collections.Counter(kernel.kind for kernel in found).most_common())


def host_calls(found: Sequence[Kernel]) -> list[str]:
    """Custom calls of this package's CPU kernels, and calls back into Python."""
    return sorted({k.target for k in found if re.search(r"callback|jaxdelegate|cpu", k.target)})


def captured(thunks: str) -> dict[str, int]:
    """How much of a program CUDA graphs launch, by XLA's dump of its thunks.

    Returns:
        `launches`: all thunks; `captured`: those inside graphs; `graphs`: the number of graphs.

    Raises:
        ValueError: the text holds no thunk.
    """
    lines = [(len(m[1]), m[2]) for m in map(_THUNK.match, thunks.splitlines()) if m is not None]
    if not lines:
        raise ValueError("no thunk in the dump")
    launches = inside = graphs = 0
    graph_indent: int | None = None
    for indent, kind in lines:
        if graph_indent is not None and indent <= graph_indent:
            graph_indent = None
        if kind == _GRAPH:
            graphs, graph_indent = graphs + 1, indent
        elif kind not in _HOLDERS:
            launches += 1
            inside += graph_indent is not None
    return {"launches": launches, "captured": inside, "graphs": graphs}


def wide_operations(hlo: str) -> int:
    """How many instructions, fused ones included, have 64-bit results."""
    return sum(
        bool(_WIDE.search(i.shape))
        for body in _computations(hlo)[0].values()
        for i in body
        if i.opcode not in _BOOKKEEPING
    )


def products(hlo: str) -> int:
    """How many convolutions and matrix products there are, fused ones included."""
    return sum(i.opcode in _PRODUCTS for body in _computations(hlo)[0].values() for i in body)


def product_dtypes(hlo: str) -> dict[str, int]:
    """How many convolutions, matrix products and attentions multiply values of each dtype.

    One whose two first operands differ counts as the wider one.
    """
    found = collections.Counter[str]()
    for body in _computations(hlo)[0].values():
        shapes = {i.name: i.shape for i in body}
        for i in body:
            if i.opcode in _PRODUCTS or _CALLED_PRODUCT.search(i.rest):
                arrays = (_ARRAY.search(shapes.get(name, "")) for name in i.operands[:2])
                found[max((int(a[2]), a[1] + a[2]) for a in arrays if a is not None)[1]] += 1
    return dict(found)


def array_bytes(shape: str, dtype: str | None = None) -> int:
    """The bytes of all arrays in the text of a shape or tuple, or only those of one dtype."""
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * max(int(bits or 8) // 8, 1)
        for kind, bits, sizes in _ARRAY.findall(shape)
        if dtype in (None, kind + bits)
    )


def _computations(hlo: str) -> tuple[dict[str, list[_Instruction]], str | None]:
    found: dict[str, list[_Instruction]] = {}
    entry, body = None, list[_Instruction]()
    for line in hlo.splitlines():
        if (head := _COMPUTATION.match(line)) is not None:
            body = found[head[2]] = []
            entry = head[2] if head[1] else entry
        elif (parts := _INSTRUCTION.match(line)) is not None:
            body.append(_Instruction(*parts.groups()))
    return found, entry


def _kernel(instruction: _Instruction, shapes: dict[str, str]) -> Kernel:
    size = functools.partial(array_bytes, instruction.shape)
    target = re.search(r'custom_call_target="([^"]*)"', instruction.rest)
    return Kernel(
        name=instruction.name,
        kind=_kind(instruction),
        read=sum(array_bytes(shapes.get(name, "")) for name in instruction.operands),
        written=size(),
        float32=size("f32"),
        target=target[1] if target else "",
        opcode=instruction.opcode,
    )


def _kind(instruction: _Instruction) -> str:
    if instruction.opcode in ("copy", "transpose") or _LAYOUT.fullmatch(instruction.name):
        return "layout"
    if instruction.opcode not in ("fusion", "custom-call"):
        return instruction.opcode
    return next((kind for kind, word in _KINDS if word in instruction.rest), instruction.opcode)
