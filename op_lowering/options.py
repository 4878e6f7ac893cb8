# ruff: noqa: F403  (every table of every family; a list of 170 names would only repeat them)
"""The parameters of operators: one dataclass for each options table of schema.fbs."""

from jaxdelegate.op_lowering.activation.options import *
from jaxdelegate.op_lowering.cast.options import *
from jaxdelegate.op_lowering.comparison.options import *
from jaxdelegate.op_lowering.control_flow.options import *
from jaxdelegate.op_lowering.convolution.options import *
from jaxdelegate.op_lowering.custom.options import *
from jaxdelegate.op_lowering.decode import OPERATORS as OPERATORS
from jaxdelegate.op_lowering.decode import custom_options as custom_options
from jaxdelegate.op_lowering.decode import custom_options_version as custom_options_version
from jaxdelegate.op_lowering.decode import decode as decode
from jaxdelegate.op_lowering.decode import default_options as default_options
from jaxdelegate.op_lowering.decode import options_class as options_class
from jaxdelegate.op_lowering.decode import record_of as record_of
from jaxdelegate.op_lowering.decode import (
    register_custom_options as register_custom_options,
)
from jaxdelegate.op_lowering.decode import widest_scalar as widest_scalar
from jaxdelegate.op_lowering.detection.options import *
from jaxdelegate.op_lowering.elementwise.options import *
from jaxdelegate.op_lowering.flex.options import *
from jaxdelegate.op_lowering.fused.options import *
from jaxdelegate.op_lowering.indexing.options import *
from jaxdelegate.op_lowering.layout.options import *
from jaxdelegate.op_lowering.lookup.options import *
from jaxdelegate.op_lowering.matmul.options import *
from jaxdelegate.op_lowering.normalization.options import *
from jaxdelegate.op_lowering.padding.options import *
from jaxdelegate.op_lowering.pooling.options import *
from jaxdelegate.op_lowering.random.options import *
from jaxdelegate.op_lowering.records.custom import *
from jaxdelegate.op_lowering.records.enums import *
from jaxdelegate.op_lowering.records.flex import *
from jaxdelegate.op_lowering.records.protocols import *
from jaxdelegate.op_lowering.records.record import *
from jaxdelegate.op_lowering.records.stored_integers import as_read as as_read
from jaxdelegate.op_lowering.records.stored_integers import why_not_alike as why_not_alike
from jaxdelegate.op_lowering.records.stored_integers import why_not_in_reals as why_not_in_reals
from jaxdelegate.op_lowering.recurrent.options import *
from jaxdelegate.op_lowering.reduction.options import *
from jaxdelegate.op_lowering.resize.options import *
from jaxdelegate.op_lowering.resources.options import *
from jaxdelegate.op_lowering.segment.options import *
from jaxdelegate.op_lowering.shape.options import *
from jaxdelegate.op_lowering.signal.options import *
from jaxdelegate.op_lowering.slicing.options import *
from jaxdelegate.op_lowering.sorting.options import *
from jaxdelegate.op_lowering.sparse.options import *
from jaxdelegate.op_lowering.stablehlo.options import *
from jaxdelegate.op_lowering.text.options import *
