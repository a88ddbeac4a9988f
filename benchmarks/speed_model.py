"""How fast the cells and encoders are beside the xlstm package, nn.LSTM and the loop over detectors."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks import compile_time
from benchmarks.compile_time import SEQUENCES, STEPS, WIDTH
from benchmarks.interleaved import Row, Work, at_least, at_most, compare
from benchmarks.trainings import Size, social_xlstm
from social_xlstm.config import XLSTMConfig
from social_xlstm.model.cells import build_stack

MANY_DETECTORS = Size(detectors=325, width=32, blocks=2, windows=4)


def rows(*, quick: bool, compiled: bool) -> Iterator[Row]:
    """Measure line by line."""
    pairs = 5 if quick else 11
    torch.manual_seed(0)
    # Dropout off: its random numbers cost the same in all and would only blur the ratio.
    config = XLSTMConfig(embedding_dim=WIDTH, dropout=0.0)
    package, fast, lstm = (build_stack(config, cell) for cell in ("package", "fast", "lstm"))
    fast.load_state_dict(package.state_dict())
    x, upstream = torch.randn(2, SEQUENCES, STEPS, WIDTH)
    x.requires_grad_()
    yield at_least(
        "fast cells against the xlstm package, forward and backward, eager",
        4.0,
        compare(_pass(package, x, upstream), _pass(fast, x, upstream), pairs=pairs),
    )
    yield at_most(
        "fast cells against nn.LSTM of six layers, same width",
        1.5,
        compare(_pass(fast, x, upstream), _pass(lstm, x, upstream), pairs=pairs),
    )
    if compiled:
        yield from _compiled(package, fast, x, upstream, quick=quick)
    yield at_least(
        "training step, N=325: shared encoder against the package's loop over detectors",
        30.0,
        compare(
            social_xlstm("per_vd", MANY_DETECTORS, "cpu", cell="package"),
            social_xlstm("shared", MANY_DETECTORS, "cpu", cell="fast"),
            pairs=3 if quick else 5,
            repeat_second=10,
        ),
    )
    yield at_least(
        "training step, N=325: stacked independent weights against the loop over the same cells",
        5.0,
        compare(
            social_xlstm("per_vd", MANY_DETECTORS, "cpu", cell="fast"),
            social_xlstm("stacked", MANY_DETECTORS, "cpu", cell="fast"),
            pairs=3 if quick else 7,
            repeat_second=3,
        ),
    )


def _pass(stack: nn.Module, x: Tensor, upstream: Tensor) -> Work:
    def forward_and_backward() -> None:
        # As a training does: gradients are made anew, not added to.
        stack.zero_grad(set_to_none=True)
        x.grad = None
        stack(x).backward(upstream)

    return forward_and_backward


def _compiled(
    package: nn.Module, fast: nn.Module, x: Tensor, upstream: Tensor, *, quick: bool
) -> Iterator[Row]:
    works = (_pass(torch.compile(stack), x, upstream) for stack in (package, fast))
    yield at_least("the same, both compiled", 1.5, compare(*works, pairs=5 if quick else 11))
    times = compile_time.in_turns(1 if quick else 2)
    ours, theirs = (", ".join(f"{each:.0f}" for each in some) for some in (times.fast, times.package))
    yield Row(
        "compile time of the fast cells against the package's, processes of their own",
        "≤ 1×",
        times.ratio <= 1.0,
        f"{times.ratio:.2f}× ({ours} s against {theirs} s)",
    )
