"""Wrong uses by new users, and the errors that they must get.

`docs/generate_errors.py` writes docs/errors.md from this list; `test_wrong_uses.py` runs it.
"""

import contextlib
import dataclasses
import io
import os
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    CustomOptions,
    DivOptions,
    FullyConnectedOptions,
    Padding,
    ReshapeOptions,
    WhileOptions,
)
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.tools.main import main
from tests.support.networks import broadcast
from tests.support.quantized import scaled


@dataclasses.dataclass(frozen=True)
class WrongUse:
    """A wrong use and its error.

    Attributes:
        what: a description.
        code: Python, or a command after `$ `; it runs in a folder with the files of `prepare`.
        error: the error class, or the exit code of a command.
        says: parts of the message: what is wrong, where, what was expected, what to do.
    """

    what: str
    code: str
    error: str
    says: tuple[str, ...]

    def __str__(self) -> str:
        """The test id."""
        return self.what


def use(what: str, code: str, error: str, *says: str) -> WrongUse:
    """A row of the list."""
    return WrongUse(what, code, error, says)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
OPEN = 'jd.Interpreter("{}")'
READY = 'i = jd.Interpreter("model.tflite"); i.allocate_tensors(); '
LOAD = 'jd.load("model.tflite")'
DELEGATES = 'jd.Interpreter("{}", experimental_delegates={})'
STOCK = "from ai_edge_litert.interpreter import Interpreter\n"

WRONG_USES: dict[str, tuple[WrongUse, ...]] = {
    "Model files": (
        use("a missing file", OPEN.format("missing.tflite"), "ModelError", "No such file"),
        use("a folder", OPEN.format("models"), "ModelError", "name a file in it: model.tflite"),
        use("an empty folder", OPEN.format("empty"), "ModelError", "name the .tflite file"),
        use(
            "a TensorFlow SavedModel",
            OPEN.format("saved_model"),
            "ModelError",
            "TFLiteConverter.from_saved_model",
        ),
        use(
            "an empty file", OPEN.format("empty.tflite"), "ModelError", "download or copy it again"
        ),
        use("a truncated file", OPEN.format("half.tflite"), "ModelError", "the file is truncated"),
        use("a Git LFS pointer", OPEN.format("lfs.tflite"), "ModelError", "git lfs pull"),
        use(
            "a Git LFS pointer to another format",
            OPEN.format("lfs.onnx"),
            "ModelError",
            "git lfs pull",
        ),
        use("a web page", OPEN.format("page.tflite"), "ModelError", "download the file itself"),
        use(
            "a ZIP archive without a model",
            OPEN.format("packed.task"),
            "ModelError",
            "a ZIP archive without a .tflite file in it",
        ),
        use(
            "a bundle of several models",
            OPEN.format("hands.task"),
            "ModelError",
            "name one after an exclamation mark, for example 'hands.task!detector.tflite'",
            "its models: detector.tflite, landmarks.tflite",
        ),
        use(
            "the same, for a command",
            "$ jaxdelegate benchmark_model hands.task",
            "1",
            "a bundle of 2 models",
        ),
        use(
            "a model that a bundle does not contain",
            OPEN.format("hands.task!landmark.tflite"),
            "ModelError",
            "the bundle does not have a model 'landmark.tflite'",
            "did you mean 'landmarks.tflite'?",
        ),
        use(
            "a truncated bundle of LiteRT-LM",
            OPEN.format("language.litertlm"),
            "ModelError",
            "a LiteRT-LM bundle has at least 40 bytes, got 32",
            "download or copy it again",
        ),
        use(
            "a model instead of a bundle",
            'jd.open_bundle("model.tflite")',
            "ModelError",
            "expected a bundle",
            "it looks like a single model: jaxdelegate.Interpreter, jaxdelegate.load and",
        ),
        use(
            "a C array of a model",
            OPEN.format("model.cc"),
            "ModelError",
            "or load bytes(int(n, 16) for n in re.findall('0x(\\\\w+)', text))",
        ),
        use("a GGUF file", OPEN.format("model.gguf"), "ModelError", "llama.cpp", "litert_torch"),
        use(
            "a file of weights",
            OPEN.format("weights.bin"),
            "ModelError",
            "weights without a network (safetensors)",
            "litert_torch",
        ),
        use("a frozen graph", OPEN.format("graph.pb"), "ModelError", "TFLiteConverter"),
        use("a Keras file", OPEN.format("model.keras"), "ModelError", "from_keras_model"),
        use(
            "an ONNX file", OPEN.format("model.onnx"), "ModelError", "an ONNX file", "litert_torch"
        ),
        use("a PyTorch file", OPEN.format("model.pt"), "ModelError", "litert_torch"),
        use(
            "a tensor of terabytes",
            'jd.Interpreter("huge.tflite").allocate_tensors()',
            "InterpreterError",
            "tensor 2 'y' is float32 [1048576, 1048576], which takes 4398046511104 bytes",
            "a larger max_tensor_bytes allows it",
        ),
        use(
            "tensors that take too much memory in total",
            'jd.Interpreter("model.tflite", max_host_memory=2000).allocate_tensors()',
            "InterpreterError",
            "max_host_memory is 2000. The largest: tensor ",
            "A smaller batch takes less; a larger max_host_memory allows it",
        ),
        use("no model", "jd.Interpreter()", "ValueError", "must be specified"),
        use(
            "a path and content",
            'jd.Interpreter("model.tflite", model_content=b"TFL3")',
            "ValueError",
            "Can't both provide",
        ),
    ),
    "Running a model": (
        use(
            "an endless loop, with a timeout",
            'i = jd.Interpreter("endless.tflite", timeout=0.2); i.allocate_tensors(); i.invoke()',
            "StoppedError",
            "took more than its timeout of 0.2 s",
            "does a loop of the model never end?",
        ),
        use(
            "a timeout of 0",
            'jd.Interpreter("model.tflite", timeout=0)',
            "ValueError",
            "timeout: expected a positive number of seconds, got 0",
        ),
        use(
            "invoke before allocate_tensors",
            'jd.Interpreter("model.tflite").invoke()',
            "InterpreterError",
            "Call allocate_tensors() first",
        ),
        use(
            "set_tensor before allocate_tensors",
            'jd.Interpreter("model.tflite").set_tensor(0, x)',
            "TensorError",
            "Try calling allocate_tensors() first",
        ),
        use(
            "get_tensor before allocate_tensors",
            'jd.Interpreter("model.tflite").get_tensor(4)',
            "TensorError",
            "Run allocate_tensors() first",
        ),
        use(
            "a wrong dtype",
            READY + 'i.set_tensor(0, x.astype("uint8"))',
            "TensorError",
            "'input' wants float32 [1, 8, 8, 3], got uint8",
        ),
        use(
            "float64, numpy's default",
            READY + "i.set_tensor(0, np.random.rand(1, 8, 8, 3))",
            "TensorError",
            "convert it with .astype('float32')",
        ),
        use(
            "a wrong size",
            READY + 'i.set_tensor(0, np.zeros((1, 9, 9, 3), "float32"))',
            "TensorError",
            "Got 9 but expected 8 for dimension 1",
        ),
        use(
            "a wrong batch size",
            READY + 'i.set_tensor(0, np.zeros((4, 8, 8, 3), "float32"))',
            "TensorError",
            "call resize_tensor_input with [4, 8, 8, 3] first",
        ),
        use(
            "no batch dimension",
            READY + 'i.set_tensor(0, np.zeros((8, 8, 3), "float32"))',
            "TensorError",
            "add the batch dimension with x[np.newaxis]",
        ),
        use(
            "channels first",
            READY + 'i.set_tensor(0, np.zeros((1, 3, 8, 8), "float32"))',
            "TensorError",
            "use x.transpose(0, 2, 3, 1)",
        ),
        use("a list of numbers", READY + "i.set_tensor(0, [1, 2])", "TensorError", "got int64 [2]"),
        use(
            "no such tensor",
            READY + "i.set_tensor(99, x)",
            "TensorError",
            "Invalid tensor index 99",
        ),
        use(
            "a name instead of an index",
            READY + 'i.set_tensor("input", x)',
            "TypeError",
            "expected an integer from get_input_details()",
        ),
        use(
            "details instead of an index",
            READY + "i.set_tensor(i.get_input_details()[0], x)",
            "TypeError",
            "got dict; pass its ['index']",
        ),
        use(
            "a shape and an index in the wrong order",
            READY + "i.resize_tensor_input([4, 8, 8, 3], 0)",
            "TypeError",
            "input_index: expected an integer from get_input_details(), got list",
        ),
        use(
            "a weight",
            READY + "i.set_tensor(1, i.get_tensor(1) * 0)",
            "TensorError",
            "1 'filter' is a constant, which programs are compiled with",
            "jaxdelegate.save(model, path, {'filter': values})",
        ),
        use(
            "a tensor that the model computes",
            READY + "i.set_tensor(3, np.zeros((1, 8, 8, 4), 'float32'))",
            "TensorError",
            "3 'conv' is computed by the model",
            "jaxdelegate.load(model).from_('conv')",
        ),
        use(
            "floats for a quantized input",
            'i = jd.Interpreter("quantized.tflite"); i.allocate_tensors(); i.set_tensor(0, x)',
            "TensorError",
            "it is quantized, with scale 0.1 and zero point 0",
            "pass round(x / scale) + zero_point of real values x",
        ),
        use(
            "numbers for a tensor of strings",
            'i = jd.Interpreter("words.tflite"); i.allocate_tensors()\n'
            "i.set_tensor(0, np.array([1, 2], object))",
            "TensorError",
            "expected strings (str or bytes), got int",
        ),
        use(
            "delegates as the second argument",
            'jd.Interpreter("model.tflite", [jd.JaxDelegate()])',
            "TypeError",
            "model_content: expected bytes, got list; delegates are experimental_delegates=[...]",
        ),
        use(
            "a tensor inside a partition",
            DELEGATES.format("model.tflite", "[jd.JaxDelegate()]") + ".get_tensor(3)",
            "TensorError",
            "allocate_tensors() first",
        ),
        use(
            "a shape of a wrong rank",
            READY + "i.resize_tensor_input(0, [8, 8, 3]); i.allocate_tensors()",
            "InterpreterError",
            "input 0 'input' has the shape [8, 8, 3], the model declares [1, 8, 8, 3]",
            "add the batch dimension",
        ),
        use(
            "a batch on a model that fixes 1",
            'i = jd.Interpreter("fixed.tflite"); i.resize_tensor_input(0, [4, 2, 3])\n'
            "i.allocate_tensors()",
            "InterpreterError",
            "RESHAPE: [4, 2, 3] does not fit [1, 6]",
            "to run a batch on a model that fixes 1, use JaxDelegate(rebatch=True) in "
            "jaxdelegate.Interpreter, or jaxdelegate.load(model).batched(n)",
        ),
        use(
            "a batch for only one of the inputs",
            'd = jd.JaxDelegate(rebatch=True); i = jd.Interpreter("two.tflite", '
            "experimental_delegates=[d])\n"
            "i.resize_tensor_input(0, [4, 6]); i.allocate_tensors()",
            "InterpreterError",
            "every input that the model declares as [1, ...] has to be resized to the same batch",
            "0 'a' [4, 6], 1 'b' [1, 6]",
        ),
        use(
            "a negative size",
            READY + "i.resize_tensor_input(0, [-1, 8, 8, 3])",
            "TensorError",
            "sizes must not be negative",
        ),
        use(
            "a fixed dimension, strictly",
            READY + "i.resize_tensor_input(0, [2, 8, 8, 3], strict=True)",
            "InterpreterError",
            "only allows mutating unknown dimensions",
        ),
        use(
            "invoke after a resize",
            READY + "i.resize_tensor_input(0, [2, 8, 8, 3]); i.invoke()",
            "InterpreterError",
            "Call allocate_tensors() first",
        ),
        use(
            "a view of a tensor that is still held",
            READY + "view = i.tensor(0)(); i.invoke()",
            "RuntimeError",
            "only hold the function returned from tensor()",
        ),
        use(
            "an index out of range",
            'i = jd.Interpreter("gather.tflite"); i.allocate_tensors()\n'
            'i.set_tensor(0, np.array([9], "int32")); i.invoke()',
            "InterpreterError",
            "Node number 0 (GATHER) failed to invoke",
            "indices must be in [0, 3), got [9]",
        ),
        use(
            "a signature of a model without signatures",
            'jd.Interpreter("model.tflite").get_signature_runner("serve")',
            "ValueError",
            "The model has none: use set_tensor and invoke",
        ),
        use(
            "a misspelt signature",
            'jd.Interpreter("signed.tflite").get_signature_runner("serve")',
            "ValueError",
            "The model has 'serving_default'",
        ),
        use(
            "a missing input of a signature",
            'jd.Interpreter("signed.tflite").get_signature_runner()()',
            "ValueError",
            "expected 1 vs provided 0: it has x",
        ),
        use(
            "an unknown input of a signature",
            'jd.Interpreter("signed.tflite").get_signature_runner()(image=x)',
            "ValueError",
            "Invalid Input name (image)",
            "it has x",
        ),
        use(
            "no threads",
            'jd.Interpreter("model.tflite", num_threads=0)',
            "ValueError",
            "num_threads should >= 1",
        ),
    ),
    "Options of JaxDelegate": (
        use(
            "a misspelt option",
            'jd.JaxDelegate(compute_type="float16")',
            "OptionError",
            "did you mean: compute_dtype",
        ),
        use(
            "an option with another tool's name",
            'jd.JaxDelegate(precision="fp16")',
            "OptionError",
            "did you mean: compute_dtype?",
        ),
        use(
            "a value with another tool's name",
            'jd.JaxDelegate(compute_dtype="fp16")',
            "OptionError",
            "did you mean 'float16'?",
        ),
        use(
            "an unknown quantized mode",
            'jd.JaxDelegate(quant_mode="int8")',
            "OptionError",
            "did you mean 'integer'?",
        ),
        use(
            "a value without its option",
            'jd.JaxDelegate("cpu")',
            "TypeError",
            "expected a dictionary such as {'platform': 'cpu'}, got str",
            "single options have names: platform='cpu'",
        ),
        use(
            "a value of a wrong type",
            'jd.JaxDelegate(max_delegated_partitions="many")',
            "OptionError",
            "expected int, got 'many'",
        ),
        use(
            "a platform that JAX does not have",
            'jd.JaxDelegate(platform="tpu")',
            "OptionError",
            "'tpu' is not there; JAX has: cpu",
            "pip install 'jax[tpu]'",
        ),
        use("cuda", 'jd.JaxDelegate(platform="cuda")', "OptionError", "did you mean 'gpu'?"),
        use(
            "a missing device",
            'jd.JaxDelegate(platform="cpu", device_index=7)',
            "OptionError",
            "device_index: 7 is not there; cpu has: ",
        ),
        use(
            "an unknown rewrite",
            'jd.JaxDelegate(rewrites="fuse")',
            "OptionError",
            "expected 'all', 'none' or some of",
        ),
        use(
            "priorities in an invalid order",
            'jd.JaxDelegate(inference_priority1="auto", inference_priority2="min_latency")',
            "OptionError",
            "'auto' must come after all other priorities",
        ),
        use(
            "operators that are not numbers",
            'jd.JaxDelegate(compute_dtype="float16", float32_operators="SOFTMAX")',
            "OptionError",
            "expected numbers such as '3,17'",
        ),
    ),
    "Delegates": (
        use(
            "a delegate outside a list",
            DELEGATES.format("model.tflite", "jd.JaxDelegate()"),
            "TypeError",
            "expected a list of delegates",
            "write [JaxDelegate(...)]",
        ),
        use(
            "the same in the stock interpreter",
            STOCK + 'Interpreter("model.tflite", experimental_delegates=jd.JaxDelegate())',
            "TypeError",
            "write [JaxDelegate(...)]",
        ),
        use(
            "single runs of a batch in the stock interpreter",
            STOCK + 'Interpreter("model.tflite", experimental_delegates='
            "[jd.JaxDelegate(rebatch=True)])",
            "OptionError",
            "use jaxdelegate.Interpreter",
        ),
        use(
            "a class of delegates",
            DELEGATES.format("model.tflite", "[jd.JaxDelegate]"),
            "TypeError",
            "got the class JaxDelegate; make one: JaxDelegate()",
        ),
        use(
            "full delegation of an unsupported operator",
            DELEGATES.format("custom.tflite", "[jd.JaxDelegate(require_full_delegation=True)]"),
            "DelegationError",
            "1 of 1 operator cannot be delegated",
            "Mystery",
            "jaxdelegate.register_operator adds one",
        ),
        use(
            "an unknown custom operator",
            'jd.Interpreter("custom.tflite").allocate_tensors()',
            "InterpreterError",
            "unresolved custom op: Mystery",
            "jaxdelegate.register_operator",
        ),
        use(
            "an operator of TensorFlow (Flex)",
            'jd.Interpreter("flex.tflite").allocate_tensors()',
            "InterpreterError",
            "It is TensorFlow's Where",
            "without tf.lite.OpsSet.SELECT_TF_OPS",
        ),
        use(
            "a report before any interpreter",
            "jd.JaxDelegate().report()",
            "LookupError",
            "was not applied to subgraph 0 yet",
        ),
        use(
            "registering a builtin operator",
            'jd.register_operator("ADD", kernel=None)',
            "ValueError",
            "'ADD' is a builtin operator; only custom ones can be registered",
        ),
        use(
            "options for a library",
            'jd.load_delegate({"compute_dtype": "float16"})',
            "TypeError",
            "expected a path or 'package.module:Class'",
            "options are the second argument",
        ),
        use(
            "a missing library",
            'jd.load_delegate("./missing.so")',
            "FileNotFoundError",
            "./missing.so: no such library",
        ),
    ),
    "jaxdelegate.load": (
        use(
            "an unknown input name",
            LOAD + "(image=x)",
            "TensorError",
            "inputs ['image'] fit no signature; the model has ['input']",
        ),
        use(
            "an open file",
            'with open("model.tflite", "rb") as file:\n    jd.load(file)',
            "TypeError",
            "expected the path of a .tflite file, or its content as bytes, got BufferedReader",
            "pass its .read()",
        ),
        use(
            "a list of inputs",
            LOAD + "([x])",
            "InterpreterError",
            "leave the first dimension out: pass x[0], or x instead of [x]",
        ),
        use(
            "floats for a quantized input",
            'jd.load("quantized.tflite")(x)',
            "TensorError",
            "it is quantized, with scale 0.1 and zero point 0",
            "or x itself to the apply of model.function(io='float')",
        ),
        use(
            "strings",
            'jd.load("words.tflite")(["a", "b"])',
            "DelegationError",
            "#0 RESHAPE: 'words' holds strings, which XLA does not support",
        ),
        use(
            "params for a model",
            f"model = {LOAD}\nmodel(model.params, x)",
            "TensorError",
            "model(params, ...): params are for the apply of model.function()",
            "model.with_params(params) is a model with other weights",
        ),
        use(
            "save with its arguments in the wrong order",
            f'model = {LOAD}\nmodel.save(model.params, "tuned.tflite")',
            "TypeError",
            "Model.save(path, params): expected path to be that of a file, got dict",
        ),
        use(
            "a path before the model",
            f'jd.save("tuned.tflite", {LOAD})',
            "TypeError",
            "save(source, path, params): expected path to be that of a file, got CallableModel",
        ),
        use(
            "a model instead of its params",
            f'model = {LOAD}\nmodel.save("tuned.tflite", model)',
            "TypeError",
            "expected params to be a dictionary of arrays by name, as model.params",
            "pass its .params",
        ),
        use(
            "params instead of a signature",
            f"model = {LOAD}\nmodel.function(model.params)",
            "TypeError",
            "signature: expected a key of model.signatures, got dict",
        ),
        use("no input", LOAD + "()", "TensorError", "the model has 1 input ('input'), got 0"),
        use(
            "inputs by position and by name", LOAD + "(x, input=x)", "TensorError", "not with both"
        ),
        use(
            "float64, numpy's default",
            LOAD + "(np.random.rand(1, 8, 8, 3))",
            "TensorError",
            "convert it with .astype('float32')",
        ),
        use(
            "a wrong dtype",
            LOAD + '(x.astype("int32"))',
            "TensorError",
            "wants float32 [1, 8, 8, 3], got int32",
        ),
        use(
            "no batch dimension",
            LOAD + "(x[0])",
            "InterpreterError",
            "the model declares [1, 8, 8, 3]; add the batch dimension",
        ),
        use(
            "channels first",
            LOAD + "(x.transpose(0, 3, 1, 2))",
            "InterpreterError",
            "use x.transpose(0, 2, 3, 1)",
        ),
        use(
            "apply without params",
            f"apply, params = {LOAD}.function()\napply(x)",
            "TensorError",
            "expected params to be a dictionary by tensor name, as model.function() returns it",
        ),
        use(
            "a gradient in integer mode",
            'import jax\nmodel = jd.load("rounded.tflite", quant_mode="integer")\n'
            "jax.grad(lambda x: model(x)[0].sum())(x)",
            "GradientError",
            "QUANTIZE makes 'steps' int8: integers have no derivative",
            "load the model with quant_mode='float_view'",
        ),
        use(
            "a gradient of integer outputs",
            'import jax\nmodel = jd.load("integers.tflite")\n'
            'jax.grad(lambda x: model(x)[0].astype("float32").sum())(x)',
            "GradientError",
            "output 'steps' is int8",
            'model.function(io="float")',
        ),
        use(
            "an unknown signature",
            LOAD + '.function("serve")',
            "ValueError",
            "it has none: leave the argument out",
        ),
        use(
            "a symbolic batch",
            f"import jax\napply, params = {LOAD}.function()\n"
            '(n,) = jax.export.symbolic_shape("n")\n'
            'shape = jax.ShapeDtypeStruct((n, 8, 8, 3), "float32")\n'
            "jax.export.export(jax.jit(apply))(params, shape)",
            "TensorError",
            "the symbolic dimension 'n'",
            "for a symbolic batch use model.batched('b')",
        ),
        use(
            "a weight that diverged",
            f"model = {LOAD}\nname, leaf = next(iter(model.params.items()))\n"
            'model.save("tuned.tflite", {name: leaf * np.nan})',
            "TensorError",
            "values are NaN or infinite",
            "save earlier weights",
        ),
        use(
            "a misspelt weight",
            f"model = {LOAD}\nname, leaf = next(iter(model.params.items()))\n"
            'model.save("tuned.tflite", {name + "s": leaf})',
            "TensorError",
            "the model has no such leaf; did you mean",
            "model.params lists them",
        ),
        use(
            "a scale of zero",
            'model = jd.load("integers.tflite")\n'
            'model.save("tuned.tflite", {"steps/scale": np.zeros(1, np.float32)})',
            "TensorError",
            "params['steps/scale']: a scale must be finite and not zero, got 0",
        ),
        use(
            "weights of a wrong shape",
            f"model = {LOAD}\nname, leaf = next(iter(model.params.items()))\n"
            'model.save("tuned.tflite", {name: leaf[:1]})',
            "TensorError",
            "expected the shape",
            "the file's layout does not change",
        ),
        use(
            "weights beyond float16",
            f"model = {LOAD}\nname, leaf = next(iter(model.params.items()))\n"
            'jd.save("model.tflite", "half.tflite", {name: leaf * 1e6}, dtype="float16")',
            "TensorError",
            "float16's largest value is 65504",
            "save float32",
        ),
        use(
            "weights of a wrong type",
            'jd.save("model.tflite", "small.tflite", dtype="int8")',
            "OptionError",
            "dtype: expected 'float16' or None, got 'int8'",
            "io changes the types of inputs and outputs",
        ),
        use(
            "integer inputs of a float model",
            'jd.save("model.tflite", "small.tflite", io="int8")',
            "ModelError",
            "its inputs and outputs are not quantized",
            "quantize activations first",
        ),
        use(
            "an unknown type of inputs",
            'jd.save("integers.tflite", "small.tflite", io="bool")',
            "OptionError",
            "io: expected one of 'file', 'float', 'float32', 'int8', 'uint8', 'int16'",
        ),
        use(
            "a batch that no file can hold",
            'jd.load("loop.tflite").batched(4).save("batch.tflite")',
            "ModelError",
            "batched(4): a .tflite cannot hold a batch of ",
            "write its StableHLO: model.export(batch=...)",
        ),
        use(
            "the sensitivity of a quantized model",
            'jd.quantization_sensitivity("integers.tflite")',
            "ModelError",
            "no operator can be quantized: it is already quantized",
            "rank the original float model",
        ),
        use(
            "samples of a wrong type",
            'jd.quantization_sensitivity("model.tflite", [x.astype("float64")])',
            "TensorError",
            "sample 0",
            "must be float32 [1, 8, 8, 3], got float64",
        ),
        use(
            "an unknown scheme",
            'jd.quantization_sensitivity("model.tflite", [x], "int3")',
            "OptionError",
            "schemes: expected some of int8,int16x8,dynamic,int4",
        ),
        use(
            "a normalization that divides by zero",
            'jd.save("divided.tflite", "folded.tflite", fold_normalizations=True)',
            "TensorError",
            "folding DIV.1 into FULLY_CONNECTED.0: ",
            "its filter 'weights' and its bias would not be finite in float32",
            "look for zeros and large values in 'deviations'",
        ),
        use(
            "an operator that XLA cannot run",
            'jd.load("custom.tflite")(np.zeros((2, 3), "float32"))',
            "DelegationError",
            "XLA cannot run the whole model",
            "#0 Mystery: custom operator",
            "jaxdelegate.register_operator",
        ),
        use(
            "quantization-aware training of a float model",
            LOAD + '.function(weights="fake_quantized")',
            "OptionError",
            "the model has no quantized weights",
        ),
        use(
            "quantization-aware training in integers",
            'model = jd.load("integers.tflite", quant_mode="integer")\n'
            'model.function(ranges="learned")',
            "OptionError",
            "this model was loaded with quant_mode='integer'",
            "load it with quant_mode='float_view', the default",
        ),
        use(
            "a gradient through a loop whose length depends on data",
            'import jax\napply, params = jd.load("loop.tflite").function()\n'
            "jax.grad(lambda v: apply(params, v, np.int32(3))[0])(np.float32(1))",
            "GradientError",
            "WHILE ('last', 'y', 'end'): the number of iterations depends on data",
            "jax.jvp and jax.jacfwd work",
        ),
    ),
    "Commands": (
        use("a misspelt tool", "$ jaxdelegate benchmark", "1", "did you mean 'benchmark_model'?"),
        use(
            "a misspelt flag",
            "$ jaxdelegate benchmark_model model.tflite --num_run=3",
            "1",
            "Unknown command line flag 'num_run'",
            "num_runs",
        ),
        use(
            "no model",
            "$ jaxdelegate benchmark_model",
            "1",
            "--graph is required: The .tflite",
        ),
        use(
            "a missing file",
            "$ jaxdelegate benchmark_model missing.tflite",
            "1",
            "missing.tflite: no such file",
        ),
        use(
            "a folder for a command",
            "$ jaxdelegate benchmark_model saved_model",
            "1",
            "TFLiteConverter.from_saved_model",
        ),
        use(
            "free dimensions without a size",
            "$ jaxdelegate benchmark_model free.tflite",
            "1",
            "input 0 'input' is [-1, -1, -1, 3] in the model, whose free dimensions count as 1",
            "--input_layer_shape",
        ),
        use(
            "two models",
            "$ jaxdelegate analyze model.tflite --graph=gather.tflite",
            "1",
            "give one .tflite file, got 2",
        ),
        use(
            "an invalid number",
            "$ jaxdelegate benchmark_model model.tflite --num_runs=many",
            "1",
            "flag --num_runs=many",
        ),
        use(
            "an invalid dtype",
            "$ jaxdelegate inference_diff model.tflite --jax_compute_dtype=fp16",
            "1",
            "should be one of <float32|tensorfloat32|float16|bfloat16|auto>",
        ),
        use(
            "a platform that JAX does not have",
            "$ jaxdelegate benchmark_model model.tflite --jax_platform=tpu",
            "1",
            "platform: 'tpu' is not there",
            "pip install 'jax[tpu]'",
        ),
        use(
            "input data of a wrong size",
            "$ jaxdelegate inference_diff model.tflite --input_layer=input "
            "--input_layer_value_files=input:three.bin",
            "1",
            "'input' is float32 [1, 8, 8, 3], which takes 768 bytes, got 3",
        ),
        use(
            "a missing cache",
            "$ jaxdelegate cache list --jax_serialization_dir=missing",
            "1",
            "'missing': no such folder",
            "jaxdelegate compile",
        ),
        use(
            "an unknown action",
            "$ jaxdelegate cache clear --jax_serialization_dir=models",
            "1",
            "expected one of list, verify, prune, got clear",
        ),
        use(
            "no directory for programs",
            "$ jaxdelegate compile model.tflite",
            "1",
            "--jax_serialization_dir is required: the directory for the programs",
        ),
        use(
            "a page in a missing folder",
            "$ jaxdelegate analyze model.tflite --result_html=missing/report.html",
            "1",
            "missing/report.html: no such folder",
        ),
        use(
            "missing images",
            "$ jaxdelegate imagenet_eval model.tflite --ground_truth_images_path=missing "
            "--ground_truth_labels=l.txt --model_output_labels=l.txt",
            "1",
            "ground_truth_images_path: ",
            "No such file or directory: 'missing'",
        ),
    ),
}


def prepare(folder: Path) -> None:
    """Make the files that the wrong uses name."""
    content = _convolution()
    files = {
        "model.tflite": content,
        "half.tflite": content[: len(content) // 2],
        "empty.tflite": b"",
        "lfs.tflite": LFS,
        "lfs.onnx": LFS,
        "page.tflite": b"<!DOCTYPE html><html>404</html>",
        "model.onnx": b"\x08\x07\x12\x07pytorch",
        "language.litertlm": b"LITERTLM" + bytes(24),
        "model.cc": b'#include "model.h"\nconst unsigned char model[] = {0x1c, 0x00};\n',
        "model.gguf": b"GGUF\x03\x00\x00\x00",
        "weights.bin": b"\x18" + bytes(7) + b'{"__metadata__": {}}    ',
        "graph.pb": b"\n\x0b\n\x05const\x12\x05Const",
        "model.pt": b"\x80\x02\x8a\x0al\xfc\x9cF\xf9",
        "three.bin": b"abc",
        "custom.tflite": _custom("Mystery"),
        "fixed.tflite": _fixed(),
        "free.tflite": _free(),
        "two.tflite": _two_inputs(),
        "flex.tflite": _custom("FlexWhere"),
        "gather.tflite": _gather(),
        "loop.tflite": _loop(),
        "endless.tflite": _endless(),
        "signed.tflite": _signed(),
        "quantized.tflite": _dequantized(),
        "words.tflite": _words(),
        "rounded.tflite": _rounded(is_float=True),
        "integers.tflite": _rounded(is_float=False),
        "huge.tflite": broadcast(1 << 20),
        "divided.tflite": _divided(),
        "models/model.tflite": content,
        "saved_model/saved_model.pb": b"",
    }
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (folder / "empty").mkdir()
    for name in ("packed.task", "model.keras"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("config.json", "{}")
    with zipfile.ZipFile(folder / "hands.task", "w") as archive:
        for name in ("detector.tflite", "landmarks.tflite"):
            archive.writestr(name, content)


def answer(row: WrongUse) -> tuple[str, str]:
    """Run a use in the current folder: its error class or exit code, and the message."""
    printed = io.StringIO()
    if row.code.startswith("$ "):
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            code = main(shlex.split(row.code)[2:])
        return str(code), printed.getvalue().strip()
    names: dict[str, Any] = {"jd": jd, "np": np, "x": np.zeros((1, 8, 8, 3), np.float32)}
    try:
        exec(compile(row.code, row.what, "exec"), names)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Make the folder, with the files of the wrong uses, the current one."""
    prepare(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _fixed() -> bytes:
    """RESHAPE to constant sizes, as converters write it."""
    builder = ModelBuilder()
    x, y = builder.input((1, 2, 3), name="input"), builder.tensor((1, 6))
    shape = builder.constant(np.array([1, 6], np.int32))
    builder.operator("RESHAPE", [x, shape], [y], ReshapeOptions(new_shape=(1, 6)))
    builder.outputs(y)
    return builder.build()


def _divided() -> bytes:
    builder = ModelBuilder()
    x, y, z = builder.input((1, 3)), builder.tensor((1, 2)), builder.tensor((1, 2))
    w = builder.constant(np.ones((2, 3), np.float32), "weights")
    builder.operator("FULLY_CONNECTED", [x, w, None], [y], FullyConnectedOptions())
    deviations = builder.constant(np.float32([1, 0]), "deviations")
    builder.operator("DIV", [y, deviations], [z], DivOptions())
    builder.outputs(z)
    return builder.build()


def _two_inputs() -> bytes:
    builder = ModelBuilder()
    a, b = (builder.input((1, 6), name=name) for name in "ab")
    y = builder.tensor((1, 6))
    builder.operator("MAXIMUM", [a, b], [y])
    builder.outputs(y)
    return builder.build()


def _loop() -> bytes:
    """x, doubled n times, where n is the second input."""
    builder = ModelBuilder()
    x, n = builder.input(()), builder.input((), np.int32)
    last, y = builder.tensor((), np.int32, "last"), builder.tensor((), name="y")
    end = builder.tensor((), np.int32, "end")
    zero = builder.constant(np.int32(0))
    builder.operator("WHILE", [zero, x, n], [last, y, end], WhileOptions(1, 2))
    builder.outputs(y)
    g = builder.subgraph("condition")
    i, _, n, goes_on = g.input((), np.int32), g.input(()), g.input((), np.int32), g.tensor((), bool)
    g.operator("LESS", [i, n], [goes_on])
    g.outputs(goes_on)
    g = builder.subgraph("body")
    i, x, n = g.input((), np.int32), g.input(()), g.input((), np.int32)
    following, doubled = g.tensor((), np.int32), g.tensor(())
    g.operator("ADD", [i, g.constant(np.int32(1))], [following])
    g.operator("ADD", [x, x], [doubled])
    g.outputs(following, doubled, n)
    return builder.build()


def _endless() -> bytes:
    """A loop whose condition is an input that it never changes: x equals x."""
    builder = ModelBuilder()
    x, y = builder.input((), np.int32), builder.tensor((), np.int32)
    builder.operator("WHILE", [x], [y], WhileOptions(1, 2))
    builder.outputs(y)
    g = builder.subgraph("condition")
    x, is_same = g.input((), np.int32), g.tensor((), bool)
    g.operator("EQUAL", [x, x], [is_same])
    g.outputs(is_same)
    g = builder.subgraph("body")
    g.outputs(g.input((), np.int32))
    return builder.build()


def _convolution() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 8, 8, 3), np.float32, "input")
    w = builder.constant(np.ones((4, 3, 3, 3), np.float32), "filter")
    bias = builder.constant(np.zeros(4, np.float32), "bias")
    h = builder.tensor((1, 8, 8, 4), np.float32, "conv")
    y = builder.tensor((1, 8, 8, 4), np.float32, "output")
    builder.operator("CONV_2D", [x, w, bias], [h], Conv2DOptions(stride_w=1, stride_h=1))
    builder.operator("LOGISTIC", [h], [y])
    builder.outputs(y)
    return builder.build()


def _free() -> bytes:
    """A window of 3 x 3 over an image of any size."""
    builder = ModelBuilder()
    x = builder.input((1, 1, 1, 3), np.float32, "input", shape_signature=(-1, -1, -1, 3))
    w = builder.constant(np.ones((4, 3, 3, 3), np.float32))
    bias, y = builder.constant(np.zeros(4, np.float32)), builder.tensor((1, 1, 1, 4))
    options = Conv2DOptions(padding=Padding.VALID, stride_w=1, stride_h=1)
    builder.operator("CONV_2D", [x, w, bias], [y], options)
    builder.outputs(y)
    return builder.build()


def _custom(name: str) -> bytes:
    builder = ModelBuilder()
    x = builder.input((2, 3), np.float32, "x")
    y = builder.tensor((2, 3), np.float32, "y")
    builder.operator(name, [x], [y], CustomOptions())
    builder.outputs(y)
    return builder.build()


def _gather() -> bytes:
    builder = ModelBuilder()
    ids = builder.input((1,), np.int32, "ids")
    table = builder.constant(np.zeros((3, 2), np.float32), "table")
    y = builder.tensor((1, 2), np.float32, "y")
    builder.operator("GATHER", [table, ids], [y])
    builder.outputs(y)
    return builder.build()


def _rounded(*, is_float: bool) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 8, 8, 3), np.float32, "x")
    steps = builder.tensor((1, 8, 8, 3), np.int8, "steps", quantization=scaled(0.1))
    builder.operator("QUANTIZE", [x], [steps])
    y = builder.tensor((1, 8, 8, 3), np.float32, "y")
    if is_float:
        builder.operator("DEQUANTIZE", [steps], [y])
    builder.outputs(y if is_float else steps)
    return builder.build()


def _dequantized() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 8, 8, 3), np.int8, "steps", quantization=scaled(0.1))
    y = builder.tensor((1, 8, 8, 3), np.float32, "y")
    builder.operator("DEQUANTIZE", [x], [y])
    builder.outputs(y)
    return builder.build()


def _words() -> bytes:
    builder = ModelBuilder()
    words = builder.input((2,), object, "words")
    y = builder.tensor((1, 2), object, "y")
    builder.operator("RESHAPE", [words, builder.constant(np.array([1, 2], np.int32))], [y])
    builder.outputs(y)
    return builder.build()


def _signed() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1,), np.float32, "x")
    y = builder.tensor((1,), np.float32, "y")
    builder.operator("LOGISTIC", [x], [y])
    builder.outputs(y)
    builder.signature("serving_default", {"x": x}, {"y": y})
    return builder.build()
