"""Tell a block's kind by who holds it: parameters, their gradients, an optimizer's state."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import Parameter
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from perfsuite.devices.model.memory import Memory


@contextmanager
def watch_optimizers(memory: Memory) -> Iterator[None]:
    """Sort out gradients before and state after every optimizer's step."""

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _name(memory, parameter, "parameters")
                _name(memory, parameter.grad, "gradients")

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                _name(memory, value, "optimizer")

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def find_parameters(memory: Memory) -> list[Any]:
    """Find all parameters on the device; a model without an optimizer has some too."""
    found = [thing for thing in gc.get_objects() if type(thing) is Parameter]
    return [parameter for parameter in found if _name(memory, parameter, "parameters")]


def classify_gradients(memory: Memory, parameters: list[Any]) -> None:
    """Find the gradients that a step leaves behind."""
    for parameter in parameters:
        _name(memory, parameter.grad, "gradients")


def _name(memory: Memory, tensor: Any, kind: str) -> bool:
    if tensor is None or not hasattr(tensor, "untyped_storage"):
        return False
    block = memory.block(tensor.untyped_storage())
    if block is not None:
        block.kind = kind
    return block is not None
