"""Let torch's Python code choose as it would for CUDA tensors, and look into batches for tensors."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors inside any container."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from tensors_in(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from tensors_in(getattr(value, item.name))


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Let optimizers and clipping choose as on CUDA, and compiled functions run as they are written."""
    import torch.optim.optimizer as optimizers

    module: Any = optimizers
    core: Any = torch._C
    group = core._group_tensors_by_device_and_dtype
    supported, compile_ = module._get_foreach_kernels_supported_devices, torch.compile

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        # Told by C++ they are on the CPU: clipping would move its factor there, a sync that no card has.
        found = group(lists, with_indices)
        return {(groups[0][0][0].device, dtype): groups for (_, dtype), groups in found.items()}

    def as_written(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda decorated: decorated

    # What was compiled before the test runs as written too; asking without need would load the compiler.
    is_loaded = "torch._dynamo" in sys.modules
    module._get_foreach_kernels_supported_devices = lambda: [*supported(), "cpu"]
    torch.compile = as_written
    core._group_tensors_by_device_and_dtype = grouped
    try:
        with torch.compiler.set_stance("force_eager") if is_loaded else contextlib.nullcontext():
            yield
    finally:
        module._get_foreach_kernels_supported_devices, torch.compile = supported, compile_
        core._group_tensors_by_device_and_dtype = group
