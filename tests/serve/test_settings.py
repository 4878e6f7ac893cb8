"""Settings of a served model."""

from typing import Any

import pytest
from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.tools import command_line, serve


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


def test_flags_of_settings() -> None:
    values = flags.FlagValues()
    command_line.define(serve.FLAGS, values, "serve")
    values(
        [
            "tool",
            "--kv_cache_dtype=float16",
            "--allowed_hosts=a.com, b.com",
            "--request_timeout_s=3",
        ]
    )
    settings = ServeSettings(**serve.values_of(ServeSettings, values) | {"warm": ()})
    assert (settings.kv_cache_dtype, settings.timeout_s) == ("float16", 3)
    assert serve.values_of(Limits, values)["allowed_hosts"] == ("a.com", "b.com")


def test_values_in_range() -> None:
    settings = ServeSettings(max_batch_size=1, timeout_s=0, session_idle_s=0.1)
    assert settings.max_queue_delay_us == 0
