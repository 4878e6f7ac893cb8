"""What tests of operators share."""

from collections.abc import Iterator

import pytest

from jaxdelegate.kernels import library


@pytest.fixture(params=["avx512f", "avx2"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Our own kernels in each of the processor's instruction sets."""
    if (reason := library.why_not()) is not None:
        pytest.skip(reason)
    use = library.opened(library.LIBRARY).jaxdelegate_use_instruction_set
    if not use(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    use(None)
