"""Access to torch, imported only when a device needs it, and hooks for optimizers and gradients."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def load_torch() -> ModuleType | None:
    """Import torch; return None where it is not installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch


def compile_state() -> tuple[int, int]:
    """Return the numbers of graphs and frames compiled so far; (0, 0) if there are none."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # not imported: unless loaded, nothing was compiled
    if dynamo is None:
        return (0, 0)
    counters = dynamo.counters
    return (counters["stats"]["unique_graphs"], counters["frames"]["ok"])


@contextmanager
def around_optimizers(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Call `begin` before and `end` after every optimizer step inside the context."""
    from torch.optim import optimizer

    def before(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        begin()

    def after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        end()

    hooks = [
        optimizer.register_optimizer_step_pre_hook(before),
        optimizer.register_optimizer_step_post_hook(after),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def watch_gradients(parameters: Iterable[Any], arrived: Callable[[int, Any], None]) -> Callable[[], None]:
    """Call `arrived(number, parameter)` whenever a gradient is ready; return a function that stops it."""
    hooks = [
        # Called once per backward pass, however often the parameter was used in it.
        parameter.register_post_accumulate_grad_hook(lambda ready, number=number: arrived(number, ready))
        for number, parameter in enumerate(parameters)
        if parameter.requires_grad and parameter.is_leaf
    ]

    def stop() -> None:
        for hook in hooks:
            hook.remove()
        hooks.clear()

    return stop
