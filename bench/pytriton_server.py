"""NVIDIA's Triton Inference Server running LiteRT: the peer of bench/serve_peer.py.

    python bench/pytriton_server.py MODEL PORT MAX_BATCH_SIZE

needs an environment with `nvidia-pytriton` and `ai-edge-litert`, without jaxdelegate: pytriton
requires numpy below 2, and the Python that its stub was built with (Debian's).
"""

import functools
import sys
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def main(path: str, port: str, max_batch_size: str) -> None:
    @functools.cache
    def of(size: int) -> Any:
        """An interpreter for batches of a size; XNNPACK's kernels, one thread."""
        made = Interpreter(path, num_threads=1)
        for detail in made.get_input_details():
            made.resize_tensor_input(detail["index"], (size, *detail["shape"][1:]))
        made.allocate_tensors()
        return made

    def tensors(details: list[dict[str, Any]]) -> list[Tensor]:
        return [
            Tensor(name=d["name"], dtype=d["dtype"], shape=[int(n) for n in d["shape"][1:]])
            for d in details
        ]

    @batch
    def infer(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        interpreter = of(len(next(iter(inputs.values()))))
        for detail in interpreter.get_input_details():
            interpreter.set_tensor(detail["index"], inputs[detail["name"]])
        interpreter.invoke()
        outputs = interpreter.get_output_details()
        return {d["name"]: interpreter.get_tensor(d["index"]) for d in outputs}

    for power in range(int(max_batch_size).bit_length()):
        of(1 << power)  # not while requests wait
    first = int(port)
    config = TritonConfig(
        http_address="127.0.0.1", http_port=first, grpc_port=first + 1, metrics_port=first + 2
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="m",
            infer_func=infer,
            inputs=tensors(of(1).get_input_details()),
            outputs=tensors(of(1).get_output_details()),
            config=ModelConfig(
                max_batch_size=int(max_batch_size),
                batcher=DynamicBatcher(max_queue_delay_microseconds=0),
            ),
        )
        triton.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
