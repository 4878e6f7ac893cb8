"""How much of a model stock LiteRT gives to its delegate for mobile CPUs, XNNPACK."""

from ai_edge_litert.interpreter import Interpreter as StockInterpreter

from jaxdelegate.model.open_models import open_model


def least_share(content: bytes) -> float:
    """The part of the main graph's operators that XNNPACK takes, at least.

    What is inside of its partitions has no memory; each partition also has an operator whose result
    leaves it.
    """
    interpreter, main = StockInterpreter(model_content=content), open_model(content).subgraphs[0]
    interpreter.allocate_tensors()
    inside = 0
    for op in main.operators:
        try:
            interpreter.get_tensor(op.outputs[0])
        except ValueError:
            inside += 1
    partitions = [d for d in interpreter._get_ops_details() if d["op_name"] == "DELEGATE"]
    return (inside + len(partitions)) / len(main.operators)
