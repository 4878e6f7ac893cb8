"""What tests of operators share."""

from collections.abc import Iterator

import pytest

from jaxdelegate.kernels import library
from jaxdelegate.kernels.processor import INSTRUCTION_SETS


@pytest.fixture(params=["avx512f", "avx2"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Our own kernels in each of the processor's instruction sets."""
    if (reason := library.why_not()) is not None:
        pytest.skip(reason)
    opened = library.opened(library.LIBRARY)
    best = library.in_use()
    if INSTRUCTION_SETS.index(request.param) > INSTRUCTION_SETS.index(best):
        pytest.skip(f"no {request.param}: the best set in reach is {best}")
    opened.jaxdelegate_limit_instruction_set(request.param.encode())
    found = library.in_use()
    if found == request.param:
        yield found
    opened.jaxdelegate_limit_instruction_set(best.encode())
    if found != request.param:
        pytest.skip(f"this processor has no {request.param}")
