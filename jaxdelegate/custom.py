"""Custom operators: adds a rule and a reference kernel to the tables."""

import threading

from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.op_lowering.options import CustomOptions, register_custom_options
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import OpRule
from jaxdelegate.reference.kernel import Kernel
from jaxdelegate.reference.registry import KERNELS

_REGISTERING = threading.Lock()


def register_operator(
    name: str,
    kernel: Kernel,
    rule: OpRule | None = None,
    *,
    options_type: type[CustomOptions] = CustomOptions,
) -> None:
    """Add a custom operator to every interpreter and delegate of this process.

    Register it before reading the model, which decodes the options.

    Args:
        name: the operator's custom code in the file.
        kernel: the numpy kernel and its shape function; the interpreter runs it, and shape
            propagation and constant folding use it.
        rule: how XLA runs it; None: it always runs on the host.
        options_type: the type of its decoded custom options; FlexbufferOptions reads a flexbuffer
            map into the dataclass's fields.

    Raises:
        ValueError: the name of a builtin operator, a registered name, or a rule with another name
            or other options.
    """
    if hasattr(schema.BuiltinOperator, name):
        raise ValueError(f"{name!r} is a builtin operator; only custom ones can be registered")
    if rule is not None and (rule.name, rule.options_type) != (name, options_type):
        raise ValueError(
            f"the rule is for {rule.name!r} with {rule.options_type.__name__}, "
            f"not for {name!r} with {options_type.__name__}"
        )
    with _REGISTERING:
        if name in KERNELS or name in RULES:
            raise ValueError(f"{name!r} is already registered")
        register_custom_options(name, options_type)
        KERNELS[name] = kernel
        if rule is not None:
            RULES[name] = rule
