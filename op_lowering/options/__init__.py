# ruff: noqa: F403  (every table of every category; a list of 170 names would only repeat them)
"""What an operator is told besides its tensors: one dataclass per options table of schema.fbs."""

from jaxdelegate.op_lowering.options.array import *
from jaxdelegate.op_lowering.options.audio import *
from jaxdelegate.op_lowering.options.base import *
from jaxdelegate.op_lowering.options.control import *
from jaxdelegate.op_lowering.options.custom import *
from jaxdelegate.op_lowering.options.decode import OPERATORS as OPERATORS
from jaxdelegate.op_lowering.options.decode import custom_options as custom_options
from jaxdelegate.op_lowering.options.decode import custom_options_version as custom_options_version
from jaxdelegate.op_lowering.options.decode import decode as decode
from jaxdelegate.op_lowering.options.decode import default_options as default_options
from jaxdelegate.op_lowering.options.decode import options_class as options_class
from jaxdelegate.op_lowering.options.decode import record_of as record_of
from jaxdelegate.op_lowering.options.decode import (
    register_custom_options as register_custom_options,
)
from jaxdelegate.op_lowering.options.decode import widest_scalar as widest_scalar
from jaxdelegate.op_lowering.options.enums import *
from jaxdelegate.op_lowering.options.fused import *
from jaxdelegate.op_lowering.options.math import *
from jaxdelegate.op_lowering.options.neural import *
from jaxdelegate.op_lowering.options.protocols import *
from jaxdelegate.op_lowering.options.record import *
from jaxdelegate.op_lowering.options.stablehlo import *
from jaxdelegate.op_lowering.options.stored_integers import as_read as as_read
from jaxdelegate.op_lowering.options.stored_integers import why_not_alike as why_not_alike
from jaxdelegate.op_lowering.options.stored_integers import why_not_in_reals as why_not_in_reals
