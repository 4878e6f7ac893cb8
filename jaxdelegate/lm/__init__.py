"""Language models: text generation from `.litertlm` and `.task` bundles, as with `litert_lm`.

`from jaxdelegate import lm as litert_lm` replaces `import litert_lm`: the classes below have the
names, arguments and results of that package, for text.
"""

from jaxdelegate.lm.completions import Completion, Responses
from jaxdelegate.lm.configs import (
    Backend,
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
)
from jaxdelegate.lm.engine import Engine
from jaxdelegate.lm.session import Session

__all__ = [
    "Backend",
    "Completion",
    "Engine",
    "NoRepeatNgramConfig",
    "RepetitionPenaltyConfig",
    "Responses",
    "SamplerConfig",
    "Session",
    "SuppressTokensConfig",
]
