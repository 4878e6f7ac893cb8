"""Settings of a served model."""

from typing import Any

import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.settings import ServeSettings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size: must be an integer >= 1, got 0"),
        ({"max_batch_size": True}, "max_batch_size: must be an integer"),
        ({"max_batch_size": 2.0}, "max_batch_size: must be an integer"),
        ({"max_queue_size": 0}, "max_queue_size"),
        ({"max_queue_delay_us": -1}, "max_queue_delay_us: must be an integer >= 0, got -1"),
        ({"timeout_s": -0.5}, "timeout_s: must be a number >= 0"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"warm": ("json", "x")}, "warm: must be kinds of any, long, .*, got 'x'"),
        ({"warm": "json"}, "warm: must be kinds of .*, got 'json'"),
        ({"session_count": 0}, "session_count"),
        ({"session_idle_s": 0}, "session_idle_s: must be a number >= 0.001, got 0"),
        ({"delegate_options": {"cache_dir": "x"}}, "unknown option 'cache_dir'; did you mean"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ServeSettings(**options)


def test_values_in_range() -> None:
    settings = ServeSettings(max_batch_size=1, timeout_s=0, session_idle_s=0.1)
    assert settings.max_queue_delay_us == 0
