"""Peaks of arithmetic and memory that the makers of GPUs state, by the device's name.

bench/compare.py --roofline=datasheet uses them. Sources, all by NVIDIA: data sheets of H100, H200,
A100, L4 and T4 Tensor Core GPUs; "NVIDIA Ada GPU Architecture", table 2 (RTX 4090). Where a line
names another source, its figures were compared with that. Figures are without sparsity. float32 is
that of CUDA cores, without TensorFloat-32. A part of a GPU (MIG), or a GPU that is not in the
table, has no peaks here; its share of a roofline is then unknown.
"""

import dataclasses

import numpy as np
from harness import AbsentError

from jaxdelegate.benchmark.peaks import DevicePeaks

_TERA, _GIGA = 1e12, 1e9


@dataclasses.dataclass(frozen=True)
class Datasheet:
    """TFLOP/s (int8: TOP/s) and GB/s of one GPU.

    Attributes:
        float32: CUDA cores.
        half: tensor cores, float16 and bfloat16 operands and float32 sums.
        int8: tensor cores.
        memory: GB/s.
    """

    float32: float
    half: float
    int8: float
    memory: float


_H100_SXM = Datasheet(67, 989.4, 1978.9, 3350)
_A100_40 = Datasheet(19.5, 312, 624, 1555)
# By `jax.Device.device_kind`.
DATASHEETS = {
    "NVIDIA H200": dataclasses.replace(_H100_SXM, memory=4800),
    "NVIDIA H100 80GB HBM3": _H100_SXM,
    # NVIDIA's table, as https://archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html repeats it:
    # 1,513 and 3,026 with sparsity, 2,000 GB/s; product brief PB-11133-001: more than 2,000 GB/s.
    "NVIDIA H100 PCIe": Datasheet(51, 756, 1513, 2000),
    "NVIDIA A100-SXM4-80GB": dataclasses.replace(_A100_40, memory=2039),
    "NVIDIA A100 80GB PCIe": dataclasses.replace(_A100_40, memory=1935),
    "NVIDIA A100-SXM4-40GB": _A100_40,
    "NVIDIA A100-PCIE-40GB": _A100_40,
    "NVIDIA L4": Datasheet(30.3, 121, 242, 300),
    # CUDA's deviceQuery of a T4: 5,001 MHz, twice a clock, 256 bits: 320 GB/s
    # (https://gist.github.com/Terminus-IMRC/5e4b7782c27106dec287050b323cd059; so, too,
    # https://sysrqmts.com/en/gpus/nvidia/tesla/t4).
    "Tesla T4": Datasheet(8.1, 65, 130, 320),
    "NVIDIA GeForce RTX 4090": Datasheet(82.6, 165.2, 660.6, 1008),
}


def datasheet_peaks(kind: str, dtype: np.dtype) -> DevicePeaks:
    """The peaks of a whole GPU.

    Args:
        kind: the name of the device.
        dtype: of the operands of products.

    Raises:
        AbsentError: the table lacks the device or the dtype.
    """
    sheet = DATASHEETS.get(kind)
    if sheet is None:
        raise AbsentError(f"no datasheet of {kind!r} in bench/device_peaks.py")
    name = {"float16": "half", "bfloat16": "half"}.get(np.dtype(dtype).name, np.dtype(dtype).name)
    if name not in ("float32", "half", "int8"):
        raise AbsentError(f"no peak of {dtype} in bench/device_peaks.py")
    return DevicePeaks(getattr(sheet, name) * _TERA, {1: sheet.memory * _GIGA}, str(dtype))
