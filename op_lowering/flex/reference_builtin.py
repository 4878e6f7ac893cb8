"""TensorFlow's operators that a builtin operator computes: its kernel with translated options."""

from jaxdelegate.op_lowering.families import reference_modules
from jaxdelegate.op_lowering.flex.options import BUILTIN, FAMILIES, translated
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes

_KERNELS: dict[str, Kernel] = {
    name: kernel
    for module in reference_modules(FAMILIES)
    for name, kernel in getattr(module, "KERNELS", {}).items()
}


def _options(name: str, o: FlexOptions) -> Options:
    options = translated(name, o)
    if isinstance(options, str):
        raise ValueError(f"{FLEX}{name}: {options}")
    return options


def _kernel(name: str) -> Kernel:
    kernel = _KERNELS[BUILTIN[name][0]]

    def run(o: FlexOptions, inputs: Specs, outputs: Specs, *arrays: Array) -> tuple[Array, ...]:
        return kernel.run(_options(name, o), inputs, outputs, *arrays)

    def shapes(o: FlexOptions, inputs: Specs) -> ResultShapes:
        most = len(inputs) if kernel.most_inputs is None else kernel.most_inputs
        if not kernel.least_inputs <= len(inputs) <= most:
            raise ValueError(f"it needs {kernel.least_inputs} inputs, not {len(inputs)}")
        return kernel.shapes(_options(name, o), inputs)

    return Kernel(run, shapes)


KERNELS = {f"{FLEX}{name}": _kernel(name) for name in BUILTIN}
