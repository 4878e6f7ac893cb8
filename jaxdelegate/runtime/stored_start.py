"""An interpreter's main subgraph as one stored program, run without reading the model.

It can describe inputs and outputs, set and return their values, and run. For everything else the
interpreter reads the model.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdelegate import memory_errors
from jaxdelegate.device_errors import device_error
from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.host_memory import aligned_zeros
from jaxdelegate.pjrt.client import LOAD_ERRORS, NeedsJaxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxdelegate.program import Program, StoredTensor
    from jaxdelegate.simple_delegate import Shortcut

_LOGGER = logging.getLogger("jaxdelegate")


class StoredStart:
    """A stored program, and the values of its inputs and outputs."""

    def __init__(
        self,
        inputs: Sequence[StoredTensor],
        outputs: Sequence[StoredTensor],
        load: Callable[[], Program],
        platform: str,
        device_name: str,
        read: Callable[[], object],
    ) -> None:
        """Load nothing yet: `load` returns the program, or raises LOAD_ERRORS.

        Inputs and outputs are those of the main subgraph; `read` reads the model.
        """
        self.inputs, self.outputs, self.read = inputs, outputs, read
        self._load, self._platform, self._device_name = load, platform, device_name
        self._program: Program | None = None
        self._shortcut: Shortcut | None = None
        self.values: dict[int, Any] = {}  # by tensor

    @property
    def is_allocated(self) -> bool:
        return self._program is not None

    def input(self, index: int) -> StoredTensor | None:
        """The input with this index; None: it is another tensor."""
        return next((t for t in self.inputs if t.index == index), None)

    def allocate(self) -> bool:
        """Load the program and lay out the inputs; False: it cannot be loaded."""
        if self._program is None:
            try:
                self._program = self._load()
            except LOAD_ERRORS as error:
                _LOGGER.debug("cache: the stored start is not used: %s", error)
                return False
            for tensor in self.inputs:
                self.values[tensor.index] = aligned_zeros(tensor.shape, np.dtype(tensor.dtype))
        return True

    def invoke(self) -> bool:
        """Run the program and wait for the results; False: running it needs jax."""
        program = self._program
        if program is None:
            raise RuntimeError("invoke before allocate")
        try:
            values = map(self.values.__getitem__, program.inputs)
            results = None if self._shortcut is None else self._shortcut.call(values)
            if results is None:
                results = program([self.values[i] for i in program.inputs])
                for array in results:
                    if not isinstance(array, np.ndarray):
                        array.block_until_ready()
        except NeedsJaxError as error:
            _LOGGER.debug("cache: the stored start is not used: %s", error)
            return False
        except JaxDelegateError:  # the process was forked
            raise
        except (RuntimeError, MemoryError) as error:
            said = memory_errors.of_program(error, self._platform, program)
            where = f"The model's program failed to invoke on {self._device_name}"
            raise device_error(error, f"{where}: {said}") from error
        self.values.update(zip(program.outputs, results, strict=True))
        self._shortcut = self._shortcut or program.shortcut()
        return True
