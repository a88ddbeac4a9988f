"""What can be told of a torch operator and its arguments at a glance, whatever their shapes."""

from typing import Any

import torch

from perfsuite.devices import operators as op_rules
from perfsuite.devices import tf32


class Rule:
    """What is known of an operator whatever its shapes."""

    __slots__ = (
        *("has_kernel", "is_factory", "is_index", "is_sync", "is_transfer", "is_view", "name"),
        "tf32_unit",
    )

    def __init__(self, func: Any) -> None:
        self.name = op_rules.base_name(func)
        self.has_kernel = op_rules.has_kernel(func)
        is_marker = func.namespace in ("profiler", "prim")  # for profilers and tracers, no work
        self.is_view = is_marker or bool(func.is_view) or self.name in ("detach", "_unsafe_view")
        self.is_sync = self.name in op_rules.SYNCS
        self.is_index = self.name in ("index", "index_put", "index_put_", "_index_put_impl_")
        self.is_transfer = self.name in ("_to_copy", "copy_")
        self.is_factory = self.name in op_rules.FACTORIES
        self.tf32_unit = tf32.unit_of(op_rules.family_of(self.name))

    def is_tf32(self) -> bool:
        """Tell whether float32 would be multiplied in TF32 now; a test may switch between two steps."""
        return self.tf32_unit is not None and tf32.is_allowed(self.tf32_unit)


def has_extent(tensors: list[Any]) -> bool:
    """Tell whether any of the tensors is more than a single number."""
    return any(tensor.dim() > 0 for tensor in tensors)


def sequence_number() -> int:
    """Return autograd's number for the operator that is being recorded."""
    number: int = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
    return number


def tensors_of(values: tuple[Any, ...]) -> list[Any]:
    """Return the tensors among arguments, those inside lists too."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [entry for entry in value if isinstance(entry, torch.Tensor)]
    return found


def has_mask(args: tuple[Any, ...]) -> bool:
    """A mask as index becomes positions, whose number the host must know."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
