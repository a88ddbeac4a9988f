"""Tell when any optimizer's step begins and ends, through torch's own hooks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def around_optimizers(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Call `begin` before and `end` after every optimizer's step while the context lasts."""
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
