"""Sequences of a model with states that take turns over HTTP, against interpreters of their own."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from http_clients import Answer, Client, answered, infer, outputs, run
from server_process import ServerProcess

import jaxdelegate as jd
from jaxdelegate.serve.signatures import served_graphs
from jaxdelegate.model.records import read_model
from jaxdelegate.testing.running import random_inputs

Outputs = dict[str, np.ndarray]


class Sequences:
    """Inputs, and what an interpreter for each sequence answers."""

    def __init__(self, path: Path, sessions: int, steps: int) -> None:
        self.count, self.steps = sessions, steps
        graph = served_graphs(read_model(path))[0]
        self._input_names = [name for name, _ in graph.inputs]
