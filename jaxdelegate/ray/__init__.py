"""Models over whole data sets with Ray Data, one actor for each device.

Importing it needs no ray: `Predictor` is a class that Ray's actors make, and that a test calls.
"""

from jaxdelegate.ray.errors import PredictionError as PredictionError
from jaxdelegate.ray.metrics import PredictorStats as PredictorStats
from jaxdelegate.ray.predictor import Predictor as Predictor
