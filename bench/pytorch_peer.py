"""PyTorch on the same architectures, for the GPU comparison: channels_last, half, compiled.

    python bench/pytorch_peer.py --model=resnet50 [--batch=1] [--dtype=float16] [--device=cuda]
        [--out=bench/results/compare.jsonl]

Weights are random, as in the zoo: times do not depend on them, and there is nothing to compare
outputs with. Needs torch and torchvision. The ways: eager, torch.compile, and torch.compile with
CUDA graphs (`reduce-overhead`). Copying the input in and the output out is timed, as in compare.py.
"""

from collections.abc import Callable

import torch
import torchvision
from absl import app, flags
from harness import append, interleaved, spread

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "resnet50", "A name of torchvision.models.")
flags.DEFINE_integer("batch", 1, "Images.", 1)
flags.DEFINE_integer("size", 224, "Height and width.", 1)
flags.DEFINE_enum("dtype", "float16", ["float32", "float16", "bfloat16"], "Of weights and images.")
flags.DEFINE_string("device", "cuda", "Of torch.")
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_string("out", None, "A file to append the JSON line to.")


def ways(model: torch.nn.Module) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The model as PyTorch's users run it, fastest last."""
    compiled = {
        "pytorch": model,
        "pytorch_compile": torch.compile(model),
    }
    if FLAGS.device == "cuda":
        compiled["pytorch_cuda_graphs"] = torch.compile(model, mode="reduce-overhead")
    return compiled


def main(_argv: list[str]) -> None:
    torch.manual_seed(0)
    dtype = getattr(torch, FLAGS.dtype)
    model = torchvision.models.get_model(FLAGS.model, weights=None).eval()
    model = model.to(FLAGS.device, dtype, memory_format=torch.channels_last)
    image = torch.randn(FLAGS.batch, 3, FLAGS.size, FLAGS.size)
    image = image.contiguous(memory_format=torch.channels_last)

    def timed(run: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            with torch.inference_mode():
                return run(image.to(FLAGS.device, dtype)).cpu()

        return call

    candidates = {name: timed(run) for name, run in ways(model).items()}
    times = interleaved(candidates, rounds=FLAGS.rounds, warmup=5)
    name = torch.cuda.get_device_name() if FLAGS.device == "cuda" else "cpu"
    append(
        {
            "bench": "pytorch_peer",
            "graph": FLAGS.model,
            "batch": FLAGS.batch,
            "dtype": FLAGS.dtype,
            "device": name,
            "torch": torch.__version__,
            "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
        },
        FLAGS.out,
    )


if __name__ == "__main__":
    app.run(main)
