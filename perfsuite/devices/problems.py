"""The sizes that decide how long an operator's cuDNN call takes, as plain numbers of a kernel's `problem`."""

import math
from collections.abc import Sequence
from typing import Any

FORWARD, BY_INPUT, BY_WEIGHT = 0, 1, 2  # the ways through a layer
Problem = tuple[int, ...]
NO_PROBLEM: Problem = (1, 0, 0, 0)
_CONVOLUTIONS = ("convolution", "convolution_overrideable")
_CONVOLUTIONS_BACKWARD = ("convolution_backward", "convolution_backward_overrideable")


def ways_of(bits: int) -> list[int]:
    """Return the ways that a problem's last number stands for."""
    return [way for way in (FORWARD, BY_INPUT, BY_WEIGHT) if bits & 1 << way]


def convolution_problem(name: str, args: Sequence[Any], outputs: Sequence[Any]) -> Problem:
    """Return images, channels in and out, pixels in, height, width, kernel, stride, groups, and the ways.

    A transposed convolution is the gradient by input of one with input and output exchanged.
    """
    if name in _CONVOLUTIONS:
        outer, inner, weight = args[0], outputs[0], args[1]
        stride, transposed, groups = args[3], args[6], args[8]
        ways = 1 << (BY_INPUT if transposed else FORWARD)
    elif name in _CONVOLUTIONS_BACKWARD:
        inner, outer, weight = args[0], args[1], args[2]
        stride, transposed, groups = args[4], args[7], args[9]
        by_input = FORWARD if transposed else BY_INPUT
        ways = bool(args[-1][0]) << by_input | bool(args[-1][1]) << BY_WEIGHT
    else:
        return NO_PROBLEM
    if transposed:
        outer, inner = inner, outer
    *rest, width = (int(size) for size in inner.shape[2:])
    *kernel, kernel_width = (int(size) for size in weight.shape[2:])
    steps = math.prod(stride) if len(stride) > 1 else int(stride[0]) ** len(inner.shape[2:])
    return (
        *(int(outer.shape[0]), int(outer.shape[1]), int(inner.shape[1]), math.prod(outer.shape[2:])),
        *(math.prod(rest), width, math.prod(kernel), kernel_width, int(steps), int(groups), int(ways)),
    )


def recurrence_problem(name: str, args: Sequence[Any]) -> Problem:
    """Return steps, batch, inputs of the first and of later layers, hidden, gates, how many of each, ways."""
    is_cudnn = isinstance(args[1], list | tuple)
    weights = [weight for weight in (args[1] if is_cudnn else args[1:3]) if weight.dim() > 1]
    sequence, states = args[0], args[4:5] if is_cudnn else args[5:6]
    rows = sequence.numel() // max(int(sequence.shape[-1]), 1)  # of all time steps, packed or not
    # The state tells the batch, wherever the sequence has it; a packed one has a batch for each step.
    batch = max(int(states[0].shape[-2] if states else sequence.shape[-2]), 1)
    packed = next((a for a in args[5:] if isinstance(a, list | tuple) and a and type(a[0]) is int), None)
    if packed is not None:
        batch = max(round(rows / len(packed)), 1)
    hidden = int(weights[1].shape[1])
    firsts = sum(int(weight.shape[1]) == int(sequence.shape[-1]) for weight in weights[::2])
    directions = min(max(firsts, 1), 2) if len(weights) > 2 else 1
    ways = 1 << BY_INPUT | 1 << BY_WEIGHT if "backward" in name else 1 << FORWARD
    return (
        *(
            len(packed) if packed else max(rows // batch, 1),
            batch,
            int(weights[0].shape[1]),
            int(weights[-2].shape[1]),
            hidden,
        ),
        *(int(weights[1].shape[0]) // max(hidden, 1), directions, len(weights) // 2 - directions, ways),
    )
