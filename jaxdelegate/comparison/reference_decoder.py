"""A bundle's language model in a reference interpreter, a token at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.comparison.sides import ModelPath, open_reference
from jaxdelegate.errors import InterpreterError
from jaxdelegate.lm.engine import Engine
from jaxdelegate.lm.masks import place_inputs

# The next token, from the logarithms of probabilities and the answer before; None: it ends.
Choose = Callable[[np.ndarray, Sequence[int]], int | None]


class ReferenceDecoder:
    """Runs the signature that decodes, and those of embedders, in interpreters."""

    def __init__(self, kind: str, engine: Engine) -> None:
        self._kind, self._graph, models = kind, engine.graph, engine.bundle.models
        self._decode = self._runner(engine.model, self._graph.decode.key)
        self._embedders = {
            name: (self._runner(models[e.part], e.key), e)
            for name, e in self._graph.embedders.items()
        }
        self._states: dict[str, np.ndarray] = {}

    def answer(
        self, prompt: Sequence[int], max_output_tokens: int, choose: Choose
    ) -> tuple[list[int], np.ndarray]:
        """Continue a prompt of at least one token by the tokens that `choose` returns.

        Returns the answer, and float32 [tokens, vocabulary], the logarithms of the probabilities of
        all tokens before each of its own.
        """
        states = self._graph.states
        self._states = {name: np.zeros(s.shape, s.dtype) for name, s in states.items()}
        for place, token in enumerate(prompt[:-1]):
            self._logits(token, place)
        answer, rows, last = list[int](), list[np.ndarray](), prompt[-1]
        while len(answer) < max_output_tokens:
            row = _log_softmax(self._logits(last, len(prompt) + len(answer) - 1))
            chosen = choose(row, answer)
            if chosen is None:
                break
            answer.append(chosen)
            rows.append(row)
            last = chosen
        return answer, np.array(rows).reshape(-1, self._graph.vocabulary)

    def _logits(self, token: int, place: int) -> np.ndarray:
        """[vocabulary], after a token; the caches take it in."""
        graph, step = self._graph, self._graph.decode
        placed = place_inputs(step.places, step.inputs, place, 1, graph.attention, graph.ring)
        inputs: dict[str, Any] = {
            **self._states,
            **{name: np.asarray(array) for name, array in placed.items()},
        }
        if step.tokens is not None:
            inputs[step.tokens] = np.array([[token]], step.inputs[step.tokens].dtype)
        for name, (runner, e) in self._embedders.items():
            embedding = self._run(runner, {e.token: np.full(e.shape, token, e.dtype)})[e.result]
            inputs[name] = embedding.reshape(step.inputs[name].shape)
        outputs = self._run(self._decode, inputs)
        self._states = {name: np.array(outputs[name]) for name in self._states}
        logits: np.ndarray = outputs["logits"].reshape(-1).astype(np.float32)
        return logits

    def _runner(self, model: ModelPath, key: str) -> Any:
        interpreter = open_reference(self._kind, model)
        interpreter.allocate_tensors()
        return interpreter.get_signature_runner(key)

    def _run(self, runner: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        try:
            outputs: dict[str, Any] = runner(**inputs)
        except (RuntimeError, ValueError) as error:  # what stock interpreters raise
            raise InterpreterError(f"reference ({self._kind}): {error}") from error
        return outputs


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    scores: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return scores
