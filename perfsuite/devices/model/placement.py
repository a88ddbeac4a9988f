"""Make tensors on the modelled card behave so: their device, moves to and from it, pinned memory."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from perfsuite.devices import operators
from perfsuite.devices.model.watcher import TARGET, Watcher

_MAKERS = frozenset(
    getattr(torch, name) for name in (*operators.FACTORIES, "tensor", "as_tensor") if hasattr(torch, name)
)
_FROM_DATA = frozenset({torch.tensor, torch.as_tensor})


class Placement(TorchFunctionMode):
    """Intercept the torch functions that behave differently on a CPU than on a card."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        tensor = torch.Tensor
        self._answers: dict[Any, Any] = {
            tensor.to: self._to,
            tensor.cuda: self._cuda,
            tensor.cpu: self._cpu,
            tensor.pin_memory: self._pin,
            tensor.is_pinned: self._is_pinned,
            tensor.numpy: self._read_out,
            tensor.tolist: self._read_out,
            tensor.device.__get__: self._device,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer as a card would; pass everything else on."""
        kwargs = kwargs or {}
        answer = self._answers.get(func)
        if answer is not None:
            return answer(func, args, kwargs)
        if func in _MAKERS:
            return self._make(func, args, kwargs)
        return func(*args, **kwargs)

    def is_resident(self, tensor: Any) -> bool:
        """Return whether a tensor is on the card."""
        if self._watcher.all_resident:
            return True
        while torch._C._functorch.is_batchedtensor(tensor):  # vmap's tensors have no storage
            tensor = torch._C._functorch.get_unwrapped(tensor)
        block = self._watcher.memory.block(tensor.untyped_storage())
        return block is not None and block.resident

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._watcher.is_user_factory = True
        try:
            result = func(*args, **kwargs)
        finally:
            self._watcher.is_user_factory = False
        device = kwargs.get("device")
        if func in _FROM_DATA and device is not None and torch.device(device) == TARGET:
            place = self._watcher.places.here(3)
            self._watcher.note_copy(result, "h2d", place, non_blocking=False)
            self._watcher.settle(result, place)
        return result

    def _device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return TARGET if self.is_resident(args[0]) else func(*args, **kwargs)

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, rest = args[0], args[1:]
        if rest and isinstance(rest[0], torch.Tensor):
            target = rest[0]
            device: Any = TARGET if self.is_resident(target) else torch.device("cpu")
            dtype: Any = target.dtype
            copy, non_blocking = bool(kwargs.get("copy", False)), bool(kwargs.get("non_blocking", False))
        else:
            copy = bool(kwargs.get("copy", False))
            plain = {name: value for name, value in kwargs.items() if name != "copy"}
            device, dtype, non_blocking, _ = torch._C._nn._parse_to(*rest, **plain)
        if device is None or self._watcher.all_resident:
            return func(*args, **kwargs)
        from_device = self.is_resident(tensor)
        to_device = device == TARGET or device.type == "cuda"
        if from_device == to_device:
            # Already there: a real card would return the same tensor.
            return (
                tensor
                if not copy and dtype in (None, tensor.dtype)
                else tensor.to(dtype or tensor.dtype, copy=copy)
            )
        if to_device:
            return func(tensor, TARGET, dtype or tensor.dtype, non_blocking=non_blocking, copy=True)
        return self._to_host(tensor, dtype or tensor.dtype, non_blocking)

    def _cuda(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._to(
            torch.Tensor.to, (args[0], TARGET), {"non_blocking": kwargs.get("non_blocking", False)}
        )

    def _cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (
            self._to_host(args[0], args[0].dtype, False)
            if self.is_resident(args[0])
            else func(*args, **kwargs)
        )

    def _to_host(self, tensor: Any, dtype: Any, non_blocking: bool) -> Any:
        if self._watcher.all_resident:
            self._note_read_out(tensor)
            return tensor
        self._watcher.goes_to_host = True
        try:
            return tensor.to(torch.device("cpu"), dtype, non_blocking=non_blocking, copy=True)
        finally:
            self._watcher.goes_to_host = False

    def _pin(self, _: Any, args: tuple[Any, ...], __: dict[str, Any]) -> Any:
        pinned = args[0].clone()
        self._watcher.settle(pinned, self._watcher.places.here(3), resident=False).pinned = True
        return pinned

    def _is_pinned(self, _: Any, args: tuple[Any, ...], __: dict[str, Any]) -> Any:
        block = self._watcher.memory.block(args[0].untyped_storage())
        return block is not None and block.pinned

    def _read_out(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.is_resident(args[0]):
            self._note_read_out(args[0])
        return func(*args, **kwargs)

    def _note_read_out(self, tensor: Any) -> None:
        self._watcher.note_copy(tensor, "d2h", self._watcher.places.here(4), non_blocking=False)
