"""Which TFLite operators an XLA instruction comes from, according to the compiled program's text.

Lowering wraps each operator in a named scope, `Operator.scope`, or several scopes joined by `+` if
a rewrite merged operators. XLA keeps the scopes in the metadata of instructions; a fusion belongs
to all operators whose instructions it contains. A call batch (call_batching.py) has a scope for
each of its calls, separated by commas.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping

from jaxdelegate.kernels.call_times import batch_number

_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) "
    r"(?P<opcode>[\w\-]+)\((?P<rest>.*)$"
)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{\s*$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations|called_computations"
    r"|true_computation|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,<=]*)\]")
_BITS = re.compile(r"\d+")
_CONTROL = frozenset(("while", "conditional", "call", "async-start", "async-done"))
# Instructions that belong to no operator, unlike those that are fused with them.
_SILENT = frozenset(("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "iota"))


@dataclasses.dataclass(frozen=True)
class CallBatch:
    number: int  # its number in `call_times`
    scopes: tuple[tuple[str, ...], ...]  # the operators that each call computes


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str  # unique in the program
    opcode: str
    scopes: tuple[str, ...]  # the operators that it computes, in the order of the program
    bytes: int  # the size of its results
    operands: tuple[str, ...]
    computations: tuple[str, ...]  # that it calls
    batch: CallBatch | None  # None: it is not a call batch
    traffic: int = 0  # bytes of its results and operands
    called: frozenset[str] = frozenset()  # instructions of its computations, at all levels

    @property
    def is_control(self) -> bool:
        """Whether it only runs other instructions, as loops do."""
        return self.opcode in _CONTROL


def read_program(text: str, scopes: Collection[str]) -> dict[str, Instruction]:
    """The instructions of a compiled program, from `jax.stages.Compiled.as_text()`, by name."""
    bodies = _parse(text, frozenset(scopes))
    return _Program(bodies, list(scopes)).instructions()


def _parse(text: str, scopes: frozenset[str]) -> dict[str, list[Instruction]]:
    bodies: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in text.splitlines():
        begins = _COMPUTATION.match(line)
        if begins:
            body = bodies.setdefault(begins["name"], [])
            continue
        match = _INSTRUCTION.match(line)
        if match:
            body.append(_parsed(match, scopes))
    return bodies


def _parsed(match: re.Match[str], scopes: frozenset[str]) -> Instruction:
    rest = match["rest"]
    metadata = _OP_NAME.search(rest)
    parts = metadata[1].split("/") if metadata else []
    by_part = {
        part: [tuple(s for s in call.split("+") if s in scopes) for call in part.split(",")]
        for part in parts
    }
    name = next((part for part, calls in by_part.items() if any(calls)), "")
    calls = tuple(by_part.get(name, ()))
    computations = [c for group in _CALLED.findall(rest) for c in group.strip("{}").split(",")]
    operands = rest.split("), ", 1)[0]
    is_batch = match["opcode"] == "custom-call" and len(calls) > 1
    return Instruction(
        name=match["name"],
        opcode=match["opcode"],
        scopes=tuple(dict.fromkeys(scope for call in calls for scope in call)),
        bytes=_bytes(match["shape"]),
        operands=tuple(_OPERAND.findall(operands)),
        computations=tuple(c.strip().lstrip("%") for c in computations if c.strip()),
        batch=CallBatch(batch_number(name), calls) if is_batch else None,
    )


class _Program:
    def __init__(self, bodies: Mapping[str, list[Instruction]], order: list[str]) -> None:
        self._bodies = bodies
        self._rank = {scope: i for i, scope in enumerate(order)}
        self._users: dict[str, list[Instruction]] = {}
        self._by_name = {i.name: i for body in bodies.values() for i in body}
        for instruction in self._by_name.values():
            for operand in instruction.operands:
                self._users.setdefault(operand, []).append(instruction)
        self._callers = {
            inner.name: caller
            for caller in self._by_name.values()
            for computation in caller.computations
            for inner in bodies.get(computation, ())
        }

    def instructions(self) -> dict[str, Instruction]:
        return {
            name: dataclasses.replace(
                i,
                scopes=self._scopes(i),
                traffic=i.bytes + sum(operand.bytes for operand in self._operands(i)),
                called=frozenset(inner.name for inner in self._inside(i)),
            )
            for name, i in self._by_name.items()
        }

    def _operands(self, instruction: Instruction) -> list[Instruction]:
        return [self._by_name[name] for name in instruction.operands if name in self._by_name]

    def _inside(self, instruction: Instruction) -> Iterable[Instruction]:
        for computation in instruction.computations:
            for inner in self._bodies.get(computation, ()):
                yield inner
                yield from self._inside(inner)

    def _scopes(self, instruction: Instruction) -> tuple[str, ...]:
        """Its scopes and those inside, or else its first user's, last operand's or caller's.

        XLA drops the metadata of some instructions that it rewrites, such as a dot under a bias.
        """
        rank = self._rank.__getitem__
        inside = self._with_inner(instruction)
        if inside:
            return tuple(sorted(inside, key=rank))
        users = self._users.get(instruction.name, ())
        for first, neighbors in ((min, users), (max, self._operands(instruction))):
            scopes = {scope for neighbor in neighbors for scope in self._with_inner(neighbor)}
            if scopes:
                return (first(scopes, key=rank),)
        caller = self._callers.get(instruction.name)
        return () if caller is None else self._scopes(caller)

    def _with_inner(self, instruction: Instruction) -> set[str]:
        inside = [i for i in self._inside(instruction) if i.opcode not in _SILENT]
        return {scope for i in inside for scope in i.scopes} or {*instruction.scopes}


def _bytes(shape: str) -> int:
    """Bytes of an HLO shape such as f32[1,8]{1,0} or a tuple of them."""
    total = 0
    for kind, sizes in _ARRAY.findall(shape):
        bits = 8 if kind == "pred" else int((_BITS.search(kind) or [0])[0])
        elements = math.prod(int(n.lstrip("<=")) for n in sizes.split(",") if n)
        total += elements * bits // 8
    return total
