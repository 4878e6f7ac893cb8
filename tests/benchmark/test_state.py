"""The printed state of an interpreter."""

import numpy as np

import jaxdelegate as jd
from jaxdelegate.benchmark.session import Session
from jaxdelegate.benchmark.state import state_text
from jaxdelegate.op_lowering.options import ReshapeOptions
from jaxdelegate.testing.builder import ModelBuilder


def words() -> Session:
    builder = ModelBuilder()
    x = builder.input((4,), np.object_, "text")
    shape = builder.constant(np.int32([2, 2]), "shape")
    y = builder.tensor((2, 2), np.object_, name="a\nb")
    builder.operator("RESHAPE", [x, shape], [y], ReshapeOptions())
    builder.outputs(y)
    session = Session(jd.Interpreter(model_content=builder.build()))
    session.allocate()
    return session


def test_types_and_columns() -> None:
    lines = state_text(words(), (8, 14, 16)).splitlines()
    assert lines[0] == "-----------Subgraph-0 has 3 tensors and 1 nodes------"
    assert lines[4:8] == [
        "Tensor ID  Name     Type           AllocType        Size (Bytes/MB)    Shape",
        "Tensor 0   text     kTfLiteString  kTfLiteDynamic   0 / 0.00           [4]",
        "Tensor 1   shape    kTfLiteInt32   kTfLiteMmapRo    8 / 0.00           [2]",
        r"Tensor 2   a\nb     kTfLiteString  kTfLiteDynamic   0 / 0.00           [2, 2]",
    ]
    assert lines[9] == "Node   0 Operator RESHAPE (node 0) inputs [0, 1] outputs [2]"
