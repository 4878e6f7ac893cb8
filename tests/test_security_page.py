"""Each promise of SECURITY.md names its tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_named_tests_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(\w+/test_\w+\.py)`", text)
    assert len(named) > 10
    assert not [path for path in named if not (ROOT / "tests" / path).is_file()]


def test_each_promise_names_one() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    model = text.partition("## Threat model")[2].partition("## No promises")[0]
    promises = re.findall(r"^\* .*(?:\n  .*)*", model, re.MULTILINE)
    assert len(promises) > 8
    assert not [promise for promise in promises if "test_" not in promise]
