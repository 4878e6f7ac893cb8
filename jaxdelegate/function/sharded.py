"""The public names of sharding."""

from jaxdelegate.function.sharding.apply import ShardedApply
from jaxdelegate.function.sharding.model import ShardedModel

__all__ = ["ShardedApply", "ShardedModel"]
