"""Tell when each parameter has its gradient, through torch's own hooks."""

from collections.abc import Callable, Iterable
from typing import Any


def watch_gradients(parameters: Iterable[Any], arrived: Callable[[int, Any], None]) -> Callable[[], None]:
    """Call `arrived` with a parameter and its number whenever its gradient is there; return what ends it."""
    hooks = [
        # Once for a backward pass, however often the parameter was used in it.
        parameter.register_post_accumulate_grad_hook(lambda grown, number=number: arrived(number, grown))
        for number, parameter in enumerate(parameters)
        if parameter.requires_grad and parameter.is_leaf
    ]

    def end() -> None:
        for hook in hooks:
            hook.remove()
        hooks.clear()

    return end
