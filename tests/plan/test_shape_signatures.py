"""Shapes that users see where the file has none: planned, in every API."""

import numpy as np

import jaxdelegate as jd
from jaxdelegate.analysis import analyze_model
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import ReducerOptions, ReshapeOptions
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.limits import Limits
from jaxdelegate.plan.shape_signatures import shape_signatures
from jaxdelegate.testing import ModelBuilder
from tests.support.detectors import color_detector

DETECTIONS = {"boxes": (1, 10, 4), "classes": (1, 10), "scores": (1, 10), "count": (1,)}


def output_shapes(content: bytes) -> list[Shape]:
    model = read_model(content)
    main = model.subgraphs[0]
    return list(shape_signatures(main, model.subgraphs, main.outputs, Limits()).values())


def test_detections_have_their_planned_shapes_everywhere() -> None:
    content = color_detector(has_output_shapes=False)
    assert output_shapes(content) == list(DETECTIONS.values())
    model = jd.load(content)
    shown = ", ".join(f"{name} float32 {list(shape)}" for name, shape in DETECTIONS.items())
    assert repr(model).endswith(f" -> {shown}>")
    assert {name: model.tensors[name].shape for name in DETECTIONS} == DETECTIONS
    analyzed = analyze_model(content).subgraphs[0]
    assert [analyzed.tensors[i].shape for i in analyzed.outputs] == list(DETECTIONS.values())
    interpreter = jd.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    details = interpreter.get_output_details()
    assert {d["name"]: tuple(d["shape"]) for d in details} == DETECTIONS
    assert {d["name"]: tuple(d["shape_signature"]) for d in details} == DETECTIONS


def test_a_dimension_that_follows_a_free_one_is_free() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 3), np.float32, shape_signature=(-1, 3))
    y = builder.tensor(())
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    assert output_shapes(builder.build()) == [(-1, 3)]


def test_without_a_plan_the_file_is_believed() -> None:
    """The shape depends on data, or an operator refuses the declared shapes."""
    builder = ModelBuilder()
    x, size = builder.input((4,), np.float32), builder.input((1,), np.int32)
    y = builder.tensor(())
    builder.operator("RESHAPE", [x, size], [y], ReshapeOptions())
    builder.outputs(y)
    assert output_shapes(builder.build()) == [()]
    builder = ModelBuilder()
    a, b = builder.input((2,), np.float32), builder.input((3,), np.float32)
    c = builder.tensor(())
    builder.operator("ADD", [a, b], [c])
    builder.outputs(c)
    assert output_shapes(builder.build()) == [()]


def test_a_scalar_is_a_scalar() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,), np.float32), builder.tensor(())
    axis = builder.constant(np.array([0], np.int32))
    builder.operator("MEAN", [x, axis], [y], ReducerOptions(keep_dims=False))
    builder.outputs(y)
    assert output_shapes(builder.build()) == [()]
