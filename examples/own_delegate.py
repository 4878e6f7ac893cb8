"""A delegate in Python: SOFTMAX in numpy, in jaxdelegate's interpreter and in LiteRT's.

python examples/own_delegate.py [MODEL.tflite]
"""

import sys

import ai_edge_litert.interpreter as litert
import numpy as np

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.testing.running import random_inputs, run_once


class Softmax(jd.SimpleDelegateKernel):
    init = prepare = lambda self, context, partition: None  # nothing to prepare

    def eval(self, context, partition):
        for node in partition.nodes:
            x = context.array(node.operator.inputs[0])
            e = np.exp(node.operator.options.beta * (x - x.max(-1, keepdims=True)))
            context.assign(node.operator.outputs[0], e / e.sum(-1, keepdims=True))


class NumpySoftmax(jd.SimpleDelegate):
    create_kernel = Softmax  # one for each partition

    def is_node_supported(self, node):
        return node.name == "SOFTMAX" and node.inputs[0].dtype == np.float32


model = {"model_path": sys.argv[1]} if sys.argv[1:] else {"model_content": mobilenet_v1(size=64)}
for host in (jd, litert):
    model["experimental_op_resolver_type"] = host.OpResolverType.BUILTIN_REF  # without XNNPACK
    alone, delegate = host.Interpreter(**model), NumpySoftmax()
    delegated = host.Interpreter(**model, experimental_delegates=[delegate])
    want, got = (run_once(i, random_inputs(i.get_input_details()))[0] for i in (alone, delegated))
    print(f"{host.__name__}: {delegate.report().summary()} Differs by {abs(got - want).max():.1e}.")
