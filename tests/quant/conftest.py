"""The properties of numbers: no test of them is about time, whatever else a machine does."""

import hypothesis

hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")
