"""Models over whole data sets with Ray Data, one actor for each device.

Importing this package does not need Ray: `Predictor` is a plain class that Ray's actors create.
"""

from jaxdelegate.ray.errors import PredictionError as PredictionError
from jaxdelegate.ray.metrics import PredictorStats as PredictorStats
from jaxdelegate.ray.predictor import Predictor as Predictor
