"""Follow the memory of tensors by watching the dispatcher, on any machine and to the byte."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):
    """Follow the memory of tensors from their birth to their death, and keep the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage() not in self._known:
                storage = leaf.untyped_storage()
                self._known[storage] = None
                self.live += storage.nbytes()
                weakref.finalize(storage, self._died, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return result

    def _died(self, size: int) -> None:
        self.live -= size
