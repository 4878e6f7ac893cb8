import pytest


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(compiled_once: None) -> None:
    pass
