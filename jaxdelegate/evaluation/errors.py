"""Errors of images, labels, annotations and stored results."""

from jaxdelegate.errors import JaxDelegateError


class DataError(JaxDelegateError, ValueError):
    """Images, labels, annotations or the model do not fit the evaluation."""
