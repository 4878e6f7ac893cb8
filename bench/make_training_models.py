"""Trains small files for training on devices: with TensorFlow 2.17's interpreter, and with ours.

python bench/make_training_models.py make FOLDER     # with tensorflow-cpu==2.17.*: the models, and
                                                     # its losses, results and checkpoints
python bench/make_training_models.py compare FOLDER  # with jaxdelegate: the largest differences,
                                                     # and checkpoints for the next command
python bench/make_training_models.py restore FOLDER  # with tensorflow-cpu==2.17.*: reads those

The files have the signatures of TensorFlow's guide to on-device training: train, infer, save and
restore. Their variables and optimizers are tf.Variable and arithmetic, because the converter of
2.17 loses the first values of Keras 3's variables.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

STEPS, BATCH, CLASSES = 50, 16, 4
IMAGE, FEATURES, WORDS, LENGTH = (12, 12, 2), 10, 30, 6
# The network and the optimizer of each file.
FILES = {
    "mlp_sgd": ("mlp", "sgd"),
    "mlp_adam": ("mlp", "adam"),
    "conv_momentum": ("conv", "momentum"),
    "deep_adam": ("deep", "adam"),
    "words_adagrad": ("words", "adagrad"),
    "separable_momentum": ("separable", "momentum"),
    "recurrent_sgd": ("recurrent", "sgd"),
}


def _data(network: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of all steps, whose classes a network can learn, and the classes as one-hot rows."""
    rng = np.random.default_rng(0)
    texts = dict.fromkeys(("recurrent", "words"), (LENGTH,))
    shape = {"mlp": (FEATURES,), **texts}.get(network, IMAGE)
    if network in texts:
        x = rng.integers(0, WORDS, (STEPS, BATCH, *shape)).astype(np.int32)
    else:
        x = rng.normal(size=(STEPS, BATCH, *shape)).astype(np.float32)
    rows = x.reshape(STEPS * BATCH, -1)
    labels = np.argmax(rows @ rng.normal(size=(rows.shape[1], CLASSES)), axis=1)
    return x, np.eye(CLASSES, dtype=np.float32)[labels].reshape(STEPS, BATCH, CLASSES)


# ---- with TensorFlow


def _network(tf: Any, kind: str) -> tuple[list[Any], Callable[[Any], Any]]:
    """The variables, and a function from inputs to logits."""
    rng = np.random.default_rng(1)
    variables: list[Any] = []

    def weights(*shape: int) -> Any:
        values = rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))
        variables.append(tf.Variable(values.astype(np.float32), name=f"w{len(variables)}"))
        return variables[-1]

    def zeros(n: int) -> Any:
        variables.append(tf.Variable(np.zeros(n, np.float32), name=f"b{len(variables)}"))
        return variables[-1]

    hidden = {"conv": 6 * 6 * 8, "deep": 6, "mlp": 24, "separable": 6 * 6 * 5}.get(kind, 8)
    if kind == "mlp":
        first, bias = weights(FEATURES, hidden), zeros(hidden)
        body = lambda x: tf.nn.relu(x @ first + bias)  # noqa: E731
    elif kind == "words":
        vectors = weights(WORDS, hidden)
        body = lambda x: tf.reduce_mean(tf.gather(vectors, x), axis=1)  # noqa: E731
    elif kind == "recurrent":
        vectors, again = weights(WORDS, hidden), weights(hidden, hidden)

        def body(x: Any) -> Any:
            def step(i: Any, y: Any) -> Any:
                return i + 1, tf.tanh(tf.gather(vectors, x[:, i]) + y @ again)

            first = tf.constant(0), tf.zeros([BATCH, hidden])
            return tf.while_loop(lambda i, _y: i < LENGTH, step, first)[1]
    elif kind == "separable":
        depthwise, pointwise = weights(3, 3, 2, 2), weights(1, 1, 4, 5)

        def body(x: Any) -> Any:
            y = tf.nn.depthwise_conv2d(x, depthwise, [1, 1, 1, 1], "SAME")
            y = tf.nn.elu(tf.nn.conv2d(y, pointwise, 1, "SAME"))
            return tf.reshape(tf.nn.avg_pool2d(y, 2, 2, "SAME"), [BATCH, hidden])
    elif kind == "conv":
        kernel, bias = weights(3, 3, 2, 8), zeros(8)

        def body(x: Any) -> Any:
            y = tf.nn.relu(tf.nn.conv2d(x, kernel, 2, "SAME") + bias)
            return tf.reshape(y, [BATCH, hidden])
    else:
        kernel, second = weights(3, 3, 2, 8), weights(3, 3, 8, hidden)

        def body(x: Any) -> Any:
            y = tf.nn.relu6(tf.nn.conv2d(x, kernel, 1, "SAME"))
            return tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(y, second, 2, "VALID")), axis=[1, 2])

    last, offset = weights(hidden, CLASSES), zeros(CLASSES)
    return variables, lambda x: body(x) @ last + offset


def _optimizer(tf: Any, kind: str, variables: Sequence[Any]) -> tuple[list[Any], Any]:
    """The state, and a function that updates the variables by their gradients."""
    slots = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}[kind]
    state = [
        [tf.Variable(tf.zeros_like(v), name=f"{v.name[:-2]}_{i}") for i in range(slots)]
        for v in variables
    ]
    step = tf.Variable(0.0, name="step")

    def update(v: Any, g: Any, slot: Sequence[Any]) -> None:
        if kind == "sgd":
            v.assign_sub(0.1 * g)
        elif kind == "momentum":
            slot[0].assign(0.9 * slot[0] + g)
            v.assign_sub(0.05 * slot[0])
        elif kind == "adagrad":
            slot[0].assign_add(g * g)
            v.assign_sub(0.1 * g * tf.math.rsqrt(slot[0] + 1e-6))
        else:
            slot[0].assign(0.9 * slot[0] + 0.1 * g)
            slot[1].assign(0.999 * slot[1] + 0.001 * g * g)
            rate = 0.01 * tf.sqrt(1 - tf.pow(0.999, step)) / (1 - tf.pow(0.9, step))
            v.assign_sub(rate * slot[0] / (tf.sqrt(slot[1]) + 1e-7))

    def apply(gradients: Sequence[Any]) -> None:
        step.assign_add(1.0)
        for v, g, slot in zip(variables, gradients, state, strict=True):
            update(v, tf.convert_to_tensor(g), slot)

    return [step, *(slot for slots in state for slot in slots)], apply


def _converted(tf: Any, network: str, optimizer: str, folder: Path) -> bytes:
    variables, logits = _network(tf, network)
    state, apply = _optimizer(tf, optimizer, variables)
    kept = [*variables, *state]
    names = [v.name for v in kept]
    x, y = (tf.TensorSpec(a.shape[1:], a.dtype) for a in _data(network))
    path = tf.TensorSpec([], tf.string)

    class Training(tf.Module):
        @tf.function(input_signature=[x, y])
        def train(self, x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.nn.softmax_cross_entropy_with_logits(y, logits(x))
                loss = tf.reduce_mean(losses)
            apply(tape.gradient(loss, variables))
            return {"loss": loss}

        @tf.function(input_signature=[x])
        def infer(self, x: Any) -> Any:
            return {"logits": logits(x)}

        @tf.function(input_signature=[path])
        def save(self, path: Any) -> Any:
            tf.raw_ops.Save(filename=path, tensor_names=names, data=[v.read_value() for v in kept])
            return {"path": path}

        @tf.function(input_signature=[path])
        def restore(self, path: Any) -> Any:
            for name, v in zip(names, kept, strict=True):
                read = tf.raw_ops.Restore(file_pattern=path, tensor_name=name, dt=v.dtype)
                v.assign(tf.ensure_shape(read, v.shape))
            return {"path": path}

    training = Training()
    training.kept = kept
    keys = ("train", "infer", "save", "restore")
    signatures = {key: getattr(training, key).get_concrete_function() for key in keys}
    tf.saved_model.save(training, str(folder), signatures=signatures)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    converter.experimental_enable_resource_variables = True
    return converter.convert()


def _runners(interpreter: Any) -> dict[str, Any]:
    interpreter.allocate_tensors()
    return {k: interpreter.get_signature_runner(k) for k in interpreter.get_signature_list()}


def _train(run: Mapping[str, Any], network: str) -> list[float]:
    return [float(run["train"](x=x, y=y)["loss"]) for x, y in zip(*_data(network), strict=True)]


def _path(path: Path) -> np.ndarray:
    return np.array(bytes(path.resolve()))


def make(folder: Path) -> None:
    """Write the models, and what TensorFlow's interpreter computes in 50 steps."""
    import tensorflow as tf  # noqa: PLC0415 (only where TensorFlow is)

    folder.mkdir(parents=True, exist_ok=True)
    for name, (network, optimizer) in FILES.items():
        content = _converted(tf, network, optimizer, folder / f"{name}.saved_model")
        (folder / f"{name}.tflite").write_bytes(content)
        run = _runners(tf.lite.Interpreter(model_content=content))
        losses = _train(run, network)
        run["save"](path=_path(folder / f"{name}.tensorflow"))
        logits = run["infer"](x=_data(network)[0][0])["logits"]
        np.savez(folder / f"{name}.npz", losses=losses, logits=logits)
        other = _losses_of_saved_model(tf, folder / f"{name}.saved_model", network)
        differing = np.max(np.abs(other - losses)) / np.max(losses)
        print(
            f"{name}: {len(content)} bytes, loss {losses[0]:.4f} -> {losses[-1]:.4f}; of the "
            f"SavedModel {differing:.1e} away"
        )


def _losses_of_saved_model(tf: Any, path: Path, network: str) -> np.ndarray:
    """By TensorFlow's own kernels, from the same first values."""
    train = tf.saved_model.load(str(path)).signatures["train"]
    steps = zip(*_data(network), strict=True)
    return np.array([float(train(x=tf.constant(x), y=tf.constant(y))["loss"]) for x, y in steps])


def restore(folder: Path) -> None:
    """Read our checkpoints with TensorFlow's interpreter; print the largest difference."""
    import tensorflow as tf  # noqa: PLC0415 (only where TensorFlow is)

    for name, (network, _) in FILES.items():
        run = _runners(tf.lite.Interpreter(str(folder / f"{name}.tflite")))
        run["restore"](path=_path(folder / f"{name}.jaxdelegate"))
        found = run["infer"](x=_data(network)[0][0])["logits"]
        print(json.dumps({"file": name, "restored": _largest(found, folder, name)}))


# ---- with jaxdelegate


def _largest(logits: Any, folder: Path, name: str) -> float:
    want = np.load(folder / f"{name}.npz")["logits"]
    return float(np.abs(logits - want).max() / np.abs(want).max())


def _train_in_jax(path: Path, network: str) -> tuple[list[float], np.ndarray]:
    """The losses, and the logits of the first inputs."""
    import jax  # noqa: PLC0415 (not where TensorFlow is)

    import jaxdelegate as jd  # noqa: PLC0415 (likewise)

    model = jd.load(path)
    (train, train_params), (infer, infer_params) = map(model.function, ("train", "infer"))
    state, losses, step = model.initial_state(), [], jax.jit(train)
    for x, y in zip(*_data(network), strict=True):
        outputs, state = step(train_params, x=x, y=y, state=state)
        losses.append(float(jax.tree.leaves(outputs)[0]))
    outputs, _ = infer(infer_params, x=_data(network)[0][0], state=state)
    return losses, np.asarray(jax.tree.leaves(outputs)[0])


def compare(folder: Path) -> None:
    """Print the largest differences of losses and logits, as a share of the largest value."""
    import jaxdelegate as jd  # noqa: PLC0415 (not where TensorFlow is)

    for name, (network, _) in FILES.items():
        try:
            print(json.dumps(_compared(folder, name, network)))
        except jd.JaxDelegateError as error:
            print(json.dumps({"file": name, "refused": str(error)}))


def _compared(folder: Path, name: str, network: str) -> dict[str, Any]:
    import jaxdelegate as jd  # noqa: PLC0415 (not where TensorFlow is)

    path, want = folder / f"{name}.tflite", np.load(folder / f"{name}.npz")["losses"]
    row: dict[str, Any] = {"file": name, "steps": len(want)}
    for way, delegates in {"numpy": [], "delegate": [jd.JaxDelegate()]}.items():
        run = _runners(jd.Interpreter(path, experimental_delegates=delegates))
        row[f"{way}_loss"] = float(np.abs(_train(run, network) - want).max() / want.max())
        logits = run["infer"](x=_data(network)[0][0])["logits"]
        row[f"{way}_logits"] = _largest(logits, folder, name)
        run["save"](path=_path(folder / f"{name}.jaxdelegate"))
        run = _runners(jd.Interpreter(path, experimental_delegates=delegates))
        run["restore"](path=_path(folder / f"{name}.tensorflow"))
        logits = run["infer"](x=_data(network)[0][0])["logits"]
        row[f"{way}_restored"] = _largest(logits, folder, name)
    try:
        losses, logits = _train_in_jax(path, network)
    except jd.JaxDelegateError as error:
        return {**row, "load_refused": str(error)}
    row["load_loss"] = float(np.abs(losses - want).max() / want.max())
    row["load_logits"] = _largest(logits, folder, name)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["make", "compare", "restore"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    {"make": make, "compare": compare, "restore": restore}[arguments.command](arguments.folder)


if __name__ == "__main__":
    main()
