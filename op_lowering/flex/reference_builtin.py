"""TensorFlow's operators that a builtin operator computes: its kernel with translated options."""

from jaxdelegate.op_lowering.comparison import reference as comparison
from jaxdelegate.op_lowering.convolution import reference as convolution
from jaxdelegate.op_lowering.convolution import reference_transpose_conv as transpose_conv
from jaxdelegate.op_lowering.elementwise import reference as elementwise
from jaxdelegate.op_lowering.flex.options import BUILTIN, translated
from jaxdelegate.op_lowering.layout import reference as layout
from jaxdelegate.op_lowering.matmul import reference as matmul
from jaxdelegate.op_lowering.normalization import reference as normalization
from jaxdelegate.op_lowering.padding import reference as padding
from jaxdelegate.op_lowering.pooling import reference as pooling
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.slicing import reference as slicing
from jaxdelegate.op_lowering.sorting import reference as sorting
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel

_MODULES = (
    *(comparison, convolution, elementwise, layout, matmul, normalization, padding),
    *(pooling, slicing, sorting, transpose_conv),
)
_KERNELS: dict[str, Kernel] = {
    name: kernel for module in _MODULES for name, kernel in module.KERNELS.items()
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

    def shapes(o: FlexOptions, inputs: Specs) -> tuple[Shape | None, ...]:
        most = len(inputs) if kernel.most_inputs is None else kernel.most_inputs
        if not kernel.least_inputs <= len(inputs) <= most:
            raise ValueError(f"it needs {kernel.least_inputs} inputs, not {len(inputs)}")
        return kernel.shapes(_options(name, o), inputs)

    return Kernel(run, shapes)


KERNELS = {f"{FLEX}{name}": _kernel(name) for name in BUILTIN}
