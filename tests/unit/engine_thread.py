"""Run a backward pass in a thread of autograd's own, as every card's gradients do; there is no card."""

import threading
from collections.abc import Callable

import torch


class _Nested(torch.autograd.Function):
    """Goes down so many levels of backward passes inside each other, then works."""

    @staticmethod
    def forward(ctx, x, levels, work):
        ctx.levels, ctx.work = levels, work
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            _down(ctx.levels - 1, ctx.work) if ctx.levels else ctx.work()
        return gradient, None, None


def _down(levels: int, work: Callable[[], object]) -> None:
    x = torch.ones(1, requires_grad=True)
    torch.autograd.grad(_Nested.apply(x, levels, work).sum(), x)


def _thread_of_gradients() -> str:
    found = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: found.append(threading.current_thread().name))
    y.sum().backward()
    return found[0]


def in_engine_thread(work: Callable[[], object]) -> None:
    """Call `work` so deep inside backward passes that autograd gives its own ones to another thread."""
    here = threading.current_thread().name
    for levels in range(40, 100):  # torch has some sixty in one thread
        threads: list[str] = []

        def look(threads: list[str] = threads) -> None:
            threads += [threading.current_thread().name, _thread_of_gradients()]

        _down(levels, look)
        if threads[0] == here != threads[1]:
            _down(levels, work)
            return
    raise AssertionError("torch gives no backward pass to another thread any more")
