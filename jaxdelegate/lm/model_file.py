"""A bundle's models: their signatures and constants, without reading operators where possible.

What a start with stored programs needs of a model is stored next to these. Reading a model's
operators takes longer than that: they are read when a program must be compiled.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes  # noqa: F401  (np.dtype("bfloat16") and others)
import numpy as np

from jaxdelegate.cache.records import SIGNATURES, Kind
from jaxdelegate.digests import source_digest
from jaxdelegate.function.records import Signature, TensorInfo
from jaxdelegate.passes.limits import Limits

if TYPE_CHECKING:
    from jaxdelegate.cache.key import Key
    from jaxdelegate.cache.programs import ProgramCache
    from jaxdelegate.model.records import Model, SignatureDef, Tensor
    from jaxdelegate.model.source import Source

FOLDERS = ("function", "lm", "plan", "runtime")  # whose code determines programs, besides others


class SignatureRecord(NamedTuple):
    """What is known of a signature without its operators.

    Attributes:
        signature: its inputs and outputs, without their quantization.
        tensors: how many its subgraph has.
        places: the offset and the bytes of constants that the file holds as they are, by tensor.
        hidden_size: elements of the hidden state behind its logits; 0: it has none.
        updates_states: whether DYNAMIC_UPDATE_SLICE writes all outputs that are inputs, too.
    """

    signature: Signature
    tensors: int
    places: Mapping[int, tuple[int, int]]
    hidden_size: int
    updates_states: bool


class ModelFile:
    """A model of a bundle.

    Attributes:
        records: what is known of each signature, by key.
    """

    def __init__(self, source: Source, cache: ProgramCache | None, device: Any) -> None:
        """Find what an earlier start has stored, or read the model.

        Args:
            source: of the model.
            cache: of its programs; None: nothing is stored.
            device: of its programs.

        Raises:
            ModelError: the model is damaged.
        """
        self._source, self._cache, self._device = source, cache, device
        stored = self._stored()
        self._is_stored = stored is not None
        self.records = _read(self.model) if stored is None else stored

    @property
    def content(self) -> memoryview:
        """The file, read-only."""
        return self._source.content

    @functools.cached_property
    def model(self) -> Model:
        """All of it; a ModelError: it is damaged."""
        from jaxdelegate.model.open_models import open_model  # noqa: PLC0415 (rarely needed)

        return open_model(self._source)

    @functools.cached_property
    def digest(self) -> str:
        """The digest of its content."""
        return source_digest(self._source)

    def drop_pages(self) -> None:
        """Let go of the file's pages, which were read."""
        if self._source.file is not None:
            self._source.file.drop_pages()

    def _key(self) -> Key | None:
        if self._cache is None:
            return None
        return self._cache.file_key(self.digest, {}, self._device, FOLDERS)

    def _stored(self) -> Mapping[str, SignatureRecord] | None:
        key = self._key()
        if self._cache is None or key is None:
            return None
        return self._cache.record(_KIND, key)

    def store(self) -> None:
        """Store what the next start needs, if it is not stored, and all of it is in this file."""
        if self._cache is None or not self.is_in_one_file or self._is_stored:
            return
        if (key := self._key()) is not None:
            self._cache.save_record(_KIND, key, self.records)
            self._is_stored = True

    def tensors(self, key: str) -> Sequence[Tensor]:
        """The tensors of a signature's subgraph."""
        return self.model.subgraphs[signature_of(self.model, key).subgraph].tensors

    @property
    def is_in_one_file(self) -> bool:
        """Whether it has no external buffers, so that its digest says what it is."""
        return self._is_stored or not self.model.external_buffer_groups


class Constants(Mapping[int, np.ndarray]):
    """The constants of several signatures, as if their subgraphs were one: by tensor.

    Those that the file holds as they are are uint8 [n], views of it.
    """

    def __init__(self, signatures: Sequence[tuple[ModelFile, str]]) -> None:
        self._signatures = signatures
        self._counts = [file.records[key].tensors for file, key in signatures]

    def __getitem__(self, number: int) -> np.ndarray:
        index = number
        for (file, key), count in zip(self._signatures, self._counts, strict=True):
            if 0 <= index < count:
                return _constant(file, key, index)
            index -= count
        raise KeyError(number)

    def __iter__(self) -> Iterator[int]:
        return (number for number in range(sum(self._counts)) if number in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _constant(file: ModelFile, key: str, index: int) -> np.ndarray:
    place = file.records[key].places.get(index)
    if place is not None:
        at, nbytes = place
        return np.frombuffer(file.content, np.uint8, nbytes, at)
    found = file.tensors(key)[index].constant
    if found is None or found.dtype.hasobject:
        raise KeyError(index)
    return found


def signature_of(model: Model, key: str) -> SignatureDef:
    """The signature with a key."""
    return next(s for s in model.signatures if s.key == key)


def _read(model: Model) -> Mapping[str, SignatureRecord]:
    from jaxdelegate.cache.constants import places  # noqa: PLC0415 (as above)
    from jaxdelegate.function.signatures import signatures_of  # noqa: PLC0415
    from jaxdelegate.lm.hidden_states import hidden_size  # noqa: PLC0415

    def record(key: str, signature: Signature) -> SignatureRecord:
        declared = signature_of(model, key)
        tensors = model.subgraphs[declared.subgraph].tensors
        constants = {t.index: t.constant for t in tensors if t.constant is not None}
        ends = (
            {name: TensorInfo(t.name, t.shape, t.dtype, None) for name, t in infos.items()}
            for infos in (signature.inputs, signature.outputs)
        )
        return SignatureRecord(
            Signature(*ends),
            len(tensors),
            places(constants, model.content),
            hidden_size(model, declared),
            _updates_states(model, declared),
        )

    signatures = signatures_of(model, Limits())
    return {key: record(key, signature) for key, signature in signatures.items()}


def _updates_states(model: Model, signature: SignatureDef) -> bool:
    operators = model.subgraphs[signature.subgraph].operators
    updated = {op.outputs[0]: op.inputs[0] for op in operators if op.name == "DYNAMIC_UPDATE_SLICE"}
    states = signature.inputs.keys() & signature.outputs.keys()
    return all(updated.get(signature.outputs[s]) == signature.inputs[s] for s in states)


def _encoded(records: Mapping[str, SignatureRecord]) -> bytes:
    def ends(infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
        return {name: [t.name, t.shape, t.dtype.name] for name, t in infos.items()}

    rows = {
        key: [
            ends(r.signature.inputs),
            ends(r.signature.outputs),
            r.tensors,
            [[i, *place] for i, place in r.places.items()],
            r.hidden_size,
            r.updates_states,
        ]
        for key, r in records.items()
    }
    return json.dumps(rows).encode()


def _decoded(text: bytes) -> Mapping[str, SignatureRecord]:
    def ends(infos: Mapping[str, Any]) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(own, tuple(shape), np.dtype(dtype), None)
            for name, (own, shape, dtype) in infos.items()
        }

    return {
        key: SignatureRecord(
            Signature(ends(inputs), ends(outputs)),
            tensors,
            {i: (at, nbytes) for i, at, nbytes in places},
            *others,
        )
        for key, (inputs, outputs, tensors, places, *others) in json.loads(text).items()
    }


_KIND = Kind("signatures", SIGNATURES, _encoded, _decoded)
