"""Tools for tests: tolerances, a model builder, operator cases. Importing it imports no jax."""

from jaxdelegate.measuring.tolerance import TOLERANCES as TOLERANCES
from jaxdelegate.measuring.tolerance import Tolerance as Tolerance
from jaxdelegate.measuring.tolerance import assert_close as assert_close
from jaxdelegate.testing.builder import ModelBuilder as ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder as SubgraphBuilder
from jaxdelegate.testing.case import Arg as Arg
from jaxdelegate.testing.case import Case as Case
from jaxdelegate.testing.case import const as const
from jaxdelegate.testing.case import f32 as f32
from jaxdelegate.testing.case import of as of
from jaxdelegate.testing.case import value as value
from jaxdelegate.testing.case import variable as variable
