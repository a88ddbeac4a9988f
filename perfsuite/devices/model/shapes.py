"""Run an operator by its shapes alone, once it was seen: for gradients whose values are void anyhow."""

from typing import Any

import torch

_Description = tuple[Any, ...]


class ShapesOnly:
    """Remember what comes out of an operator and hand out untouched memory of that shape the next time."""

    def __init__(self) -> None:
        self._known: dict[Any, list[_Description] | None] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the operator's result, or memory of its shape."""
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        key = (func, *map(_described, args), *((name, _described(value)) for name, value in kwargs.items()))
        if key in self._known:
            known = self._known[key]
            return func(*args, **kwargs) if known is None else _made(known)
        result = func(*args, **kwargs)
        self._known[key] = _outcome(result)
        return result

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Leave the tensor as it is where it is all that the operator returns."""
        is_plain = func.overloadpacket.__name__.endswith("_") and len(func._schema.returns) == 1
        return args[0] if is_plain and isinstance(args[0], torch.Tensor) else func(*args, **kwargs)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.requires_grad)
    return tuple(map(_described, value)) if isinstance(value, list | tuple) else value


def _outcome(result: Any) -> list[_Description] | None:
    """Return what describes a result of tensors; None for any other."""
    if isinstance(result, torch.Tensor):
        return [(result.shape, result.stride(), result.dtype)]
    if not isinstance(result, tuple) or not all(
        part is None or isinstance(part, torch.Tensor) for part in result
    ):
        return None
    return [() if part is None else (part.shape, part.stride(), part.dtype) for part in result] + [("tuple",)]


def _made(known: list[_Description]) -> Any:
    made = [
        torch.empty_strided(entry[0], entry[1], dtype=entry[2]) if len(entry) == 3 else None
        for entry in known
    ]
    return tuple(made[:-1]) if known[-1] == ("tuple",) else made[0]
