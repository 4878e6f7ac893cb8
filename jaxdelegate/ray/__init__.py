"""Models over whole data sets with Ray Data, one actor for each device.

Importing this package does not need Ray: `Predictor` is a plain class that Ray's actors create.
"""

from typing import TYPE_CHECKING, Any

from jaxdelegate.ray.batch_predictor import PredictorStats as PredictorStats
from jaxdelegate.ray.columns import PredictionError as PredictionError
from jaxdelegate.ray.predictor import Predictor as Predictor

if TYPE_CHECKING:
    from jaxdelegate.ray.text_predictor import TextPredictor as TextPredictor


def __getattr__(name: str) -> Any:
    if name != "TextPredictor":
        raise AttributeError(f"module 'jaxdelegate.ray' has no attribute {name!r}")
    from jaxdelegate.ray.text_predictor import TextPredictor  # noqa: PLC0415 (slow)

    return TextPredictor
