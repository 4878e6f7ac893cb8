"""A bundle's model as a JAX function: scores, gradients, fine-tuning, exports."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import lm
from jaxdelegate.function.records import Signature
from tests.support.language_models import embedders, language_bundle, language_model

PROMPT, ANSWER = "The sea", " is red"
BOS = 1
Params = dict[str, Any]


class Model:
    """The functions of docs/lm.md."""

    def __init__(self, content: bytes) -> None:
        self.bundle = jd.open_bundle(content)
        self.model = jd.load(self.bundle.models["prefill_decode"])
        self.decode, self.params = self.model.function("decode")
        self.step = self.model.signatures["decode"]
        tokenizer = self.bundle.tokenizer()
        prompt = [BOS, *tokenizer.encode(PROMPT)]  # the engine, too, begins with it
        self.tokens = jnp.asarray([*prompt, *tokenizer.encode(ANSWER)])
        self.first = len(prompt)  # of the answer

    def after(self, params: Params, caches: Any, token: Any, place: Any) -> tuple[Any, Any]:
        outputs = self.decode(params, lm.step_inputs(self.step, token, place, caches))
        return outputs.pop("logits").ravel(), outputs

    def log_probabilities(self, params: Params) -> Any:
        """The logarithms of the probabilities of all tokens after the first one."""

        def one(caches: Any, now: Any) -> Any:
            logits, caches = self.after(params, caches, *now[:2])
            return caches, jax.nn.log_softmax(logits)[now[2]]

        steps = self.tokens[:-1], jnp.arange(len(self.tokens) - 1), self.tokens[1:]
        return jax.lax.scan(one, lm.empty_caches(self.step), steps)[1]

    def loss(self, params: Params) -> Any:
        return -self.log_probabilities(params)[self.first - 1 :].mean()


@pytest.fixture(scope="module")
def tiny() -> Model:
    return Model(language_bundle())


def test_scores_are_those_of_the_engine(tiny: Model, tmp_path: Path) -> None:
    (tmp_path / "b.litertlm").write_bytes(language_bundle())
    scores = jax.jit(tiny.log_probabilities)(tiny.params)
    with lm.Engine(tmp_path / "b.litertlm") as engine, engine.create_session() as session:
        session.run_prefill([PROMPT])
        (score,) = session.run_text_scoring([ANSWER]).scores
    np.testing.assert_allclose(scores[tiny.first - 1 :].sum(), score, rtol=1e-5)


@pytest.mark.slow
def test_gradients_are_those_of_differences(tiny: Model) -> None:
    loss = jax.jit(tiny.loss)
    slopes = jax.jit(jax.grad(tiny.loss))(tiny.params)
    rng = np.random.default_rng(0)
    for name, leaf in tiny.params.items():
        way = rng.normal(size=leaf.shape).astype(np.float32)
        slope, step = float((slopes[name] * way).sum()), 1e-2
        ends = [loss({**tiny.params, name: leaf + s * way}) for s in (step, -step)]
        difference = float(ends[0] - ends[1]) / (2 * step)
        assert abs(difference) > 1e-3
        assert slope == pytest.approx(difference, rel=0.05)


def test_a_prompt_is_read_by_prefill(tiny: Model) -> None:
    key, tokens = "prefill_8", tiny.tokens
    prefill, params = tiny.model.function(key)
    step = tiny.model.signatures[key]

    @jax.jit
    def logits(start: Any) -> Any:  # traced
        caches = prefill(params, lm.step_inputs(step, tokens[:8]))
        caches = prefill(params, lm.step_inputs(step, tokens[8:-1], start, caches))
        return tiny.after(tiny.params, caches, tokens[-1], len(tokens) - 1)[0]

    assert 8 < len(tokens) - 1 < 16  # the second step has places that are not filled
    caches: Any = lm.empty_caches(tiny.step)
    for place, token in enumerate(tokens):
        expected, caches = tiny.after(tiny.params, caches, token, place)
    np.testing.assert_allclose(logits(jnp.int32(8)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_tuned_layer_is_saved_into_the_bundle(tiny: Model, tmp_path: Path) -> None:
    name = [n for n, leaf in tiny.params.items() if leaf.ndim == 2][-1]
    rows, columns = tiny.params[name].shape
    factors = jax.random.normal(jax.random.key(0), (rows, 4)), jnp.zeros((4, columns))

    def tuned(factors: Any) -> Params:
        return {**tiny.params, name: tiny.params[name] + factors[0] @ factors[1]}

    def better(factors: Any, _: Any) -> Any:
        loss, slopes = jax.value_and_grad(lambda factors: tiny.loss(tuned(factors)))(factors)
        return jax.tree.map(lambda f, slope: f - 0.1 * slope, factors, slopes), loss

    factors, losses = jax.lax.scan(better, factors, length=300)
    assert losses[0] > 5
    assert losses[-1] < 0.1
    path = tmp_path / "tuned.litertlm"
    tiny.bundle.save(path, {"prefill_decode": tiny.model.to_bytes(tuned(factors))})
    with lm.Engine(path) as engine:
        (completion,) = engine.generate([PROMPT], max_output_tokens=len(ANSWER))
    assert completion.text == ANSWER


def test_embeddings_are_further_inputs(tiny: Model) -> None:
    both = [jd.load(content) for content in embedders()]
    model = jd.load(language_model(has_embedders=True))
    decode, params = model.function("decode")
    step = model.signatures["decode"]
    token = np.full((1, 1), 65, np.int32)
    own, more = (embedder(token_ids=token)["embeddings"] for embedder in both)
    inputs = lm.step_inputs(step, token, 0, embeddings=own, per_layer_embeddings=more)
    expected, _ = tiny.after(tiny.params, None, token, 0)
    np.testing.assert_allclose(decode(params, inputs)["logits"].ravel(), expected, rtol=1e-4)


def with_mask(signature: Signature, dtype: Any) -> Signature:
    mask = dataclasses.replace(signature.inputs["mask"], dtype=np.dtype(dtype))
    return dataclasses.replace(signature, inputs={**signature.inputs, "mask": mask})


@pytest.mark.parametrize(
    ("dtype", "seen", "masked"),
    [(np.bool_, True, False), (np.float16, 0, -45824), (np.float32, 0, -2.3819763e38)],
)
def test_masks(tiny: Model, dtype: Any, seen: float, masked: float) -> None:
    mask = lm.step_inputs(with_mask(tiny.step, dtype), [65], 3)["mask"]
    assert (mask.dtype, mask.shape) == (dtype, (1, 1, 1, 128))
    np.testing.assert_array_equal(mask.ravel(), np.array([seen] * 4 + [masked] * 124, dtype))


def test_a_step_for_another_device_has_the_weights_of_the_file() -> None:
    model = jd.load(language_model(), quant_mode="integer")
    decode, params = model.function("decode")
    step = model.signatures["decode"]

    def after(params: Params, caches: Any, token: Any, place: Any) -> Any:
        return decode(params, lm.step_inputs(step, token, place, caches))

    jitted, zero = jax.jit(after, donate_argnums=1), jnp.int32(0)
    exporting = jax.export.export(jitted, platforms=["cuda", "tpu"])
    exported = exporting(params, lm.empty_caches(step), zero, zero)
    assert exported.platforms == ("cuda", "tpu")
    assert exported.mlir_module().count("tf.aliasing_output") == 2


def test_a_local_mask_has_to_be_given(tiny: Model) -> None:
    inputs = {**tiny.step.inputs, "local_mask": tiny.step.inputs["mask"]}
    step = dataclasses.replace(tiny.step, inputs=inputs)
    with pytest.raises(ValueError, match=r"expected the input local_mask=\.\.\., whose window"):
        lm.step_inputs(step, [1])
    given = np.ones(inputs["mask"].shape, np.float32)
    assert lm.step_inputs(step, [1], local_mask=given)["local_mask"].all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda step: lm.step_inputs(step, [1, 2]), "the step takes 1 tokens, got 2"),
        (lambda step: lm.step_inputs(step, [1], 128), "start from 0 to 127, .* of 128, got 128"),
        (lambda step: lm.step_inputs(step, [1], -1), "got -1"),
        (lambda step: lm.step_inputs(step, [1], images=1), "with the input 'images', got one with"),
        (lambda _: lm.step_inputs(Signature({}, {}), [1]), "with the input 'input_pos', got"),
    ],
)
def test_wrong_inputs(tiny: Model, call: Callable[[Signature], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call(tiny.step)
