"""Compares MediaPipe's face mesh with attention on ten crops of a face with MediaPipe's CPU result.

python bench/face_mesh.py write FOLDER    # with mediapipe==0.10.9 and numpy<2: its results
python bench/face_mesh.py compare FOLDER  # with jaxdelegate: the largest differences

The model is mediapipe's face_landmark_with_attention.tflite. The face is matplotlib's, which
mediapipe installs, cut out and turned in ten ways by a seed. Differences are in pixels of the
crop, 192 on a side, and the last output is a logit.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

SIZE, OUTPUTS = 192, 7
_MODEL = "modules/face_landmark/face_landmark_with_attention.tflite"


def _node(calculator: str, streams: str, options: str = "") -> str:
    return f'node {{ calculator: "{calculator}" {streams} options {{ {options} }} }}\n'


def _graph(model: Path, delegate: str) -> str:
    """A graph from an image to the numbers of each output."""
    each = range(OUTPUTS)
    ranges = " ".join(f"ranges {{ begin: {i} end: {i + 1} }}" for i in each)
    return "".join(
        [
            'input_stream: "image"\n',
            *(f'output_stream: "floats{i}"\n' for i in each),
            _node("TfLiteCustomOpResolverCalculator", 'output_side_packet: "OP_RESOLVER:kernels"'),
            _node(
                "ImageToTensorCalculator",
                'input_stream: "IMAGE:image" output_stream: "TENSORS:x"',
                "[mediapipe.ImageToTensorCalculatorOptions.ext] { output_tensor_width: 192 "
                "output_tensor_height: 192 output_tensor_float_range { min: 0.0 max: 1.0 } }",
            ),
            _node(
                "InferenceCalculator",
                'input_stream: "TENSORS:x" output_stream: "TENSORS:y" '
                'input_side_packet: "OP_RESOLVER:kernels"',
                f'[mediapipe.InferenceCalculatorOptions.ext] {{ model_path: "{model}" '
                f"delegate {{ {delegate} {{}} }} }}",
            ),
            _node(
                "SplitTensorVectorCalculator",
                'input_stream: "y" ' + " ".join(f'output_stream: "y{i}"' for i in each),
                f"[mediapipe.SplitVectorCalculatorOptions.ext] {{ {ranges} }}",
            ),
            *(
                _node(
                    "TensorsToFloatsCalculator",
                    f'input_stream: "TENSORS:y{i}" output_stream: "FLOATS:floats{i}"',
                )
                for i in each
            ),
        ]
    )


def _crops() -> np.ndarray:
    import matplotlib.cbook  # noqa: PLC0415 (only where mediapipe is)
    from PIL import Image  # noqa: PLC0415 (likewise)

    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        photo = Image.open(file).convert("RGB")
    rng, crops = np.random.default_rng(0), []
    for _ in range(10):
        half = rng.uniform(100, 165)
        x, y = rng.uniform(240, 290), rng.uniform(165, 215)
        turned = photo.rotate(rng.uniform(-30, 30), center=(x, y), resample=Image.BILINEAR)
        box = tuple(round(v) for v in (x - half, y - half, x + half, y + half))
        crops.append(np.asarray(turned.crop(box).resize((SIZE, SIZE), Image.BILINEAR)))
    return np.stack(crops)


def _run_mediapipe(graph: str, crops: np.ndarray) -> list[np.ndarray]:
    import mediapipe as mp  # noqa: PLC0415 (only where it is)

    found: list[list[Any]] = [[] for _ in range(OUTPUTS)]
    running = mp.CalculatorGraph(graph_config=graph)
    for i, numbers in enumerate(found):
        running.observe_output_stream(
            f"floats{i}",
            lambda _, packet, to=numbers: to.append(mp.packet_getter.get_float_list(packet)),
        )
    running.start_run()
    for i, crop in enumerate(crops):
        image = mp.Image(image_format=mp.ImageFormat.SRGB, data=np.ascontiguousarray(crop))
        running.add_packet_to_input_stream("image", mp.packet_creator.create_image(image).at(i))
    running.close_all_packet_sources()
    running.wait_until_done()
    return [np.array(numbers, np.float32) for numbers in found]


def write(folder: Path) -> None:
    """The model, the crops, and MediaPipe's results by TFLite's kernels and by XNNPACK."""
    import mediapipe as mp  # noqa: PLC0415 (only where it is)

    folder.mkdir(parents=True, exist_ok=True)
    model = (folder / "face_mesh.tflite").resolve()
    shutil.copyfile(Path(mp.__file__).parent / _MODEL, model)
    crops = _crops()
    for way in ("tflite", "xnnpack"):
        np.savez(folder / f"{way}.npz", *_run_mediapipe(_graph(model, way), crops))
    np.savez(folder / "crops.npz", crops)


def compare(folder: Path) -> None:
    """Print the largest difference of each output, by way."""
    import jaxdelegate as jd  # noqa: PLC0415 (not where mediapipe is)

    model = folder / "face_mesh.tflite"
    given = np.load(folder / "crops.npz")["arr_0"].astype(np.float32) / np.float32(255)
    delegate = jd.JaxDelegate(require_full_delegation=True)
    found = {
        way: list(np.load(folder / f"{way}.npz").values()) for way in ("tflite", "xnnpack")
    } | {
        "numpy": _run(jd.Interpreter(model), given),
        "delegate": _run(jd.Interpreter(model, experimental_delegates=[delegate]), given),
    }
    for a, b in (("numpy", "tflite"), ("delegate", "tflite"), ("xnnpack", "tflite")):
        pixels = [float(np.abs(x - y).max()) for x, y in zip(found[a], found[b], strict=True)]
        print(json.dumps({"of": a, "to": b, "pixels": pixels}))
    faces = int((found["tflite"][-1] > 0).sum())
    print(json.dumps({"faces": faces, "partitions": delegate.report().n_partitions}))


def _run(interpreter: Any, images: np.ndarray) -> list[np.ndarray]:
    interpreter.allocate_tensors()
    (x,), ys = interpreter.get_input_details(), interpreter.get_output_details()
    rows = []
    for image in images:
        interpreter.set_tensor(x["index"], image[None])
        interpreter.invoke()
        rows.append([interpreter.get_tensor(y["index"]).reshape(-1) for y in ys])
    return [np.stack(output) for output in zip(*rows, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["write", "compare"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    {"write": write, "compare": compare}[arguments.command](arguments.folder)


if __name__ == "__main__":
    main()
