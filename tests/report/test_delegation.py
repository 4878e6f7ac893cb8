"""The summary of why operators stay on the host."""

from jaxdelegate.report.delegation import DelegationReport, NodeReport


def report(*left: tuple[str, str]) -> DelegationReport:
    rows = [
        NodeReport(i, op, 0, 1, delegated=False, reason=reason, partition=None)
        for i, (op, reason) in enumerate(left)
    ]
    return DelegationReport("JaxDelegate", "XLA:CPU", tuple(rows))


def test_reasons_that_differ_in_a_tensor_have_one_cause() -> None:
    dynamic = "the shape of {!r} depends on data; XLA needs static shapes"
    found = report(
        ("ADD", dynamic.format("a")),
        ("MUL", dynamic.format("b")),
        ("MUL", dynamic.format("c")),
        ("WHERE", "'d' holds strings"),
    )
    assert found.causes() == [
        "WHERE: a tensor holds strings (1 operator: #3)",
        "ADD, MUL: a shape depends on data; XLA needs static shapes (3 operators: #0, #1, #2)",
    ]


def test_many_causes_and_operators_are_cut() -> None:
    found = report(*((f"OP_{i % 6}", f"reason {i // 2}") for i in range(20)))
    lines = found.causes()
    assert len(lines) == 8
    assert lines[-1] == "6 more operators, for 3 other reasons"
    (line,) = report(*((f"OP_{i}", "why") for i in range(12))).causes()
    assert line == (
        "OP_0, OP_1, OP_2, OP_3 and 8 more: why (12 operators: #0, #1, #2, #3, #4, #5, #6, #7, ...)"
    )
    assert report().causes() == []
