"""What one operator costs, for callers of the analysis."""

from jaxdelegate.measuring.costs import Cost as Cost
from jaxdelegate.measuring.costs import operator_cost as operator_cost
