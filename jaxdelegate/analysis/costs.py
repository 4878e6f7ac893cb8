"""The cost of one operator: the public path of `jaxdelegate.measuring.costs`."""

from jaxdelegate.measuring.costs import Cost as Cost
from jaxdelegate.measuring.costs import operator_cost as operator_cost
