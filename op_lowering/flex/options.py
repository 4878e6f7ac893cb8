"""Options and records of TensorFlow's operators (core/ops/*.cc)."""

import dataclasses

import numpy as np

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table

_FLOAT32 = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class TensorListOptions(FlexOptions):
    """The operators of tensor lists: what a list holds, and how many (-1: any number)."""

    element_dtype: np.dtype = _FLOAT32
    num_elements: int = -1
    resize_if_index_out_of_bounds: bool = False


_LISTS = tuple(
    OperatorRecord(f"{FLEX}TensorList{name}", TensorListOptions, cost=costs.movement)
    for name in ("FromTensor", "GetItem", "Length", "Reserve", "Resize", "SetItem", "Stack")
)

RECORDS = table(*_LISTS)
