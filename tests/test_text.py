"""Counts, short names and lines that fit a terminal."""

from jaxdelegate.report.tables import table
from jaxdelegate.text import WIDTH, plural, shortened, wrapped


def test_counts() -> None:
    assert [plural(n, "row") for n in (0, 1, 2, 1234)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,234 rows",
    ]


def test_names_keep_both_ends() -> None:
    assert shortened("short", 8) == "short"
    assert shortened("model/dense_12/BiasAdd", 12) == "model...sAdd"
    assert {len(shortened("x" * 50, most)) for most in (39, 40)} == {39, 40}


def test_lines_are_wrapped_at_words() -> None:
    word = "/a-path/that-is/" * 8
    text = wrapped(f"  {'word ' * 30}end\nshort\n{word}")
    first, *_, short, path = text.splitlines()
    assert len(first) <= WIDTH
    assert (short, path) == ("short", word)
    assert text.splitlines()[1].startswith("    word")


def test_the_last_column_continues_below() -> None:
    reason = "why " * 30
    rows = [("#", "op", "why"), ("0", "ADD", reason.strip()), ("1", "MUL", "")]
    assert table(rows)[1:3] == [
        f"0  ADD  {('why ' * 23).strip()}",
        f"        {('why ' * 7).strip()}",
    ]
    narrow = table([("x" * 70, reason.strip())])
    assert narrow[0] == "x" * 70
    assert narrow[1].startswith("      why")
    assert max(map(len, narrow)) <= WIDTH


def test_an_empty_last_cell_of_a_table_needs_no_room() -> None:
    name = "a/long/name/of/a/tensor" * 6
    assert table([("layer", "error"), (name, "")])[-1] == name
