"""A custom operator, Mish: compares its XLA rule with its numpy reference.

python examples/own_operator.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import CustomOptions
from jaxdelegate.op_lowering.rule import OpRule, why_not_dtype
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once


def mish(options, inputs, outputs, x):  # numpy: the reference
    return ((x * np.tanh(np.logaddexp(0, x))).astype(x.dtype),)


def why_not(op):  # the reason why XLA cannot run it, or None
    return why_not_dtype(op.inputs[0], np.float32)


def lower(op):  # decides everything static, once
    return lambda x: (x * jnp.tanh(jax.nn.softplus(x)),)


rule = OpRule("Mish", CustomOptions, 1, why_not, lower)
jd.register_operator("Mish", Kernel(mish, same_shape), rule)
builder = ModelBuilder()  # a model with this operator; yours is from a converter
builder.operator("Mish", [builder.input((5,))], [builder.tensor((5,))], CustomOptions())
builder.outputs(1)
x = np.linspace(-2, 2, 5, dtype=np.float32)
for name, delegates in {"numpy": [], "XLA": [jd.JaxDelegate(require_full_delegation=True)]}.items():
    interpreter = jd.Interpreter(model_content=builder.build(), experimental_delegates=delegates)
    print(f"{name:5}", *run_once(interpreter, [x]))
