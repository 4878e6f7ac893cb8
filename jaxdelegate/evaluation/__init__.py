"""Accuracy on data sets: ImageNet classification and COCO detection, measured as in TFLite."""

from jaxdelegate.evaluation.coco import CocoResult as CocoResult
from jaxdelegate.evaluation.coco import evaluate_coco as evaluate_coco
from jaxdelegate.evaluation.files import DataError as DataError
from jaxdelegate.evaluation.imagenet import ImagenetResult as ImagenetResult
from jaxdelegate.evaluation.imagenet import evaluate_imagenet as evaluate_imagenet
from jaxdelegate.evaluation.run import RunSettings as RunSettings
