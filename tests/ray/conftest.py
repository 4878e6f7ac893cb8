import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxdelegate.optional import optional_module

ROOT = Path(__file__).parents[2]


# Ray forks after jax is imported, and leaves sockets to the garbage collector.
RAYS_WARNINGS = (
    "ignore:.*os.fork:RuntimeWarning",
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings(*RAYS_WARNINGS))


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A local Ray with three CPUs, one of which reads data sets."""
    pytest.importorskip("ray", reason="needs Ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions have it
        ray = optional_module("ray", "ray")
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield
        ray.shutdown()
