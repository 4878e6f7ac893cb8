"""The report of tuning as a table."""

from jaxdelegate.report.tuning import Choice, TuningReport


def test_a_report_is_a_table() -> None:
    choices = {
        "CONV_2D float32[1] -> float32[1]; options": Choice("b", "a", {"a": 2e-3, "b": 1e-3}),
        "RELU float32[2] -> float32[2]; options": Choice("a", "a", {"a": 4e-3}, {"b": "broken"}),
    }
    report = TuningReport("cpu:0", choices)
    assert str(report).splitlines() == [
        "default ms  chosen ms  algorithm  default  operator",
        "     4.000      4.000  a          a        RELU float32[2] -> float32[2]",
        "     2.000      1.000  b          a        CONV_2D float32[1] -> float32[1]",
        "1 of 2 measured kinds of operators run another algorithm than the default on cpu:0.",
    ]
    assert [c.gain for c in choices.values()] == [2.0, 1.0]
