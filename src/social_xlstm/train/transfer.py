"""Move tensors inside any container to a device and leave everything else as it is (O12)."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def move_to_device(value: T, device: torch.device | str, *, non_blocking: bool = True) -> T:
    """Return the same structure with its tensors on the device; what holds no tensor is handed back itself.

    A non-blocking copy from pinned memory is ordered before the kernels that use it on the same stream, so
    nobody has to wait for it here. Sets are handed back as they are: tensors have no value-based hash.
    """
    return _move(value, torch.device(device), non_blocking)


def _move(value: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _move_record(value, device, non_blocking)
    if isinstance(value, Mapping):
        return _move_mapping(value, device, non_blocking)
    if isinstance(value, list | tuple):
        return _move_sequence(value, device, non_blocking)
    return value


def _move_record(record: Any, device: torch.device, non_blocking: bool) -> Any:
    """Copy a dataclass, frozen or not, without running its constructor again.

    The constructor may check, count or derive; a transfer must not repeat that, and fields with `init=False`
    could not be passed to it.
    """
    moved = {
        field.name: _move(getattr(record, field.name), device, non_blocking)
        for field in dataclasses.fields(record)
        if hasattr(record, field.name)
    }
    if all(moved[name] is getattr(record, name) for name in moved):
        return record
    twin = object.__new__(type(record))
    for name, item in {**getattr(record, "__dict__", {}), **moved}.items():
        object.__setattr__(twin, name, item)  # a frozen dataclass refuses plain assignment
    return twin


def _move_mapping(mapping: Mapping[Any, Any], device: torch.device, non_blocking: bool) -> Any:
    """Rebuild a mapping of the same type in the same order."""
    moved = {key: _move(item, device, non_blocking) for key, item in mapping.items()}
    if all(moved[key] is mapping[key] for key in moved):
        return mapping
    if type(mapping) is dict:
        return moved
    if isinstance(mapping, defaultdict):
        return type(mapping)(mapping.default_factory, moved)
    return type(mapping)(moved)  # type: ignore[call-arg]


def _move_sequence(sequence: Any, device: torch.device, non_blocking: bool) -> Any:
    """Rebuild a list, tuple or namedtuple; a namedtuple takes its items one by one."""
    moved = [_move(item, device, non_blocking) for item in sequence]
    if all(new is old for new, old in zip(moved, sequence, strict=True)):
        return sequence
    if hasattr(sequence, "_fields"):
        return type(sequence)._make(moved)
    return type(sequence)(moved)
