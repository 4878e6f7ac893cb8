"""The cost of one operator: the public path of `jaxdelegate.costs`."""

from jaxdelegate.costs import Cost as Cost
from jaxdelegate.costs import operator_cost as operator_cost
