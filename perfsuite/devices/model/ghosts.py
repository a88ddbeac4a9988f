"""Keep only the shapes of activations once they outgrow the host's memory; their bytes stay in the books."""

from typing import Any

import torch

from perfsuite.devices.model.memory import Block, Memory
from perfsuite.devices.model.shapes import ShapesOnly


class Ghost:
    """A saved tensor of which only the description was kept."""

    __slots__ = ("_block", "_memory", "dtype", "shape", "stride")

    def __init__(self, tensor: Any, block: Block, memory: Memory) -> None:
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self._block, self._memory = block, memory
        memory.hold(block)

    def stand_in(self) -> Any:
        """Return memory of the same shape, booked under the block they stand for."""
        with torch._C._DisableTorchDispatch():  # our own doing, not the step's
            zeros = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
            if not zeros.is_floating_point():
                zeros.zero_()  # as an index, chance could point anywhere
        self._memory.stand_in(zeros.untyped_storage(), self._block)
        return zeros

    def __del__(self) -> None:
        self._memory.release(self._block)


class Ghosts:
    """Replace what autograd saves, from the moment the step holds more than a budget."""

    def __init__(self, memory: Memory, budget_bytes: int) -> None:
        self._memory = memory
        self.threshold_bytes = memory.live_bytes + budget_bytes
        self.is_on = False
        self.count = 0
        self.shapes = ShapesOnly()

    def begin(self) -> None:
        """Keep shapes only from here to the end of the step."""
        if not self.is_on:
            torch._C._autograd._push_saved_tensors_default_hooks(self._pack, self._unpack)
            self.is_on = True

    def end(self) -> None:
        """Save whole tensors again."""
        if self.is_on:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            self.is_on = False

    def _pack(self, tensor: Any) -> Any:
        block = self._memory.block(tensor.untyped_storage())
        # What lives on anyhow (weights, inputs) costs nothing to keep.
        if block is None or block.kind != "activations":
            return tensor
        self.count += 1
        return Ghost(tensor, block, self._memory)

    def _unpack(self, saved: Any) -> Any:
        return saved.stand_in() if isinstance(saved, Ghost) else saved
