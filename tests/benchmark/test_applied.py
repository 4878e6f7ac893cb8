"""What delegates run of a model, in TFLite's words."""

import pytest

from jaxdelegate.benchmark.applied import AppliedDelegate, require_full_delegation
from jaxdelegate.errors import DelegationError

WHOLE = AppliedDelegate("GPU", 1, is_complete=True)
PART = AppliedDelegate("GPU", 2, is_complete=False, reasons="NEG: no rule (1 operator: #3)")
NOTHING = AppliedDelegate("GPU", 0, is_complete=False)


def test_tflites_lines() -> None:
    assert WHOLE.line().endswith("will be completely executed by the delegate.")
    assert PART.line().endswith("partially executed by the delegate w/ 2 delegate kernels.")
    assert NOTHING.line().startswith("Though GPU delegate is explicitly applied")


def test_one_delegate_has_to_run_everything() -> None:
    require_full_delegation([NOTHING, WHOLE])
    with pytest.raises(DelegationError, match=r"CPU fallback detected\.\nNEG: no rule"):
        require_full_delegation([NOTHING, PART])
