"""How large each contract's training is, by device: one table.

A CPU shows every effect at a small size. A card that is measured or emulated is filled: 16 windows of 325
detectors, width 128, as the documents have it; where the slow variant launches its kernels once per detector
or window, there are fewer of them. A modelled card computes on the CPU: it gets what that can carry.
"""

from typing import NamedTuple

from tests.perf.subject import Size


class Sizes(NamedTuple):
    """One training in three sizes."""

    cpu: Size
    model: Size
    card: Size  # CUDA and emulated

    def on(self, kind: str) -> Size:
        """Return the size for a kind of device."""
        return self.cpu if kind == "cpu" else self.model if kind == "model" else self.card


SMALL = Size()
SIX_BLOCKS = Size(windows=16, detectors=325, width=128, blocks=6, slstm_at=(1, 3))  # the reference model
TWO_BLOCKS = Size(windows=16, detectors=325, width=128)

SIZES = {
    # O1, O2, O3, O4: the slow variant launches everything once per detector
    "loop": Sizes(
        cpu=Size(windows=2, detectors=16),  # small, so that a few seconds have many turns of the slow loop
        model=Size(windows=4, detectors=16, width=64),
        card=Size(windows=64, detectors=8, width=128),
    ),
    "heads": Sizes(SMALL, SMALL, Size(windows=64, detectors=8, width=128)),
    "growth": Sizes(SMALL, Size(detectors=6), Size(windows=64, detectors=4, width=128)),
    "groups": Sizes(SMALL, Size(windows=8), TWO_BLOCKS),
    # O20: the package's cells beside ours
    "sync-free cell": Sizes(Size(windows=2, detectors=8), Size(windows=2, detectors=8), TWO_BLOCKS),
    "fast cells": Sizes(
        Size(windows=4, detectors=16, width=64), Size(windows=4, detectors=16, width=64), TWO_BLOCKS
    ),
    "pooling": Sizes(SMALL, SMALL, TWO_BLOCKS),  # O21
    "precision": Sizes(SMALL, Size(windows=8, detectors=16, width=64), SIX_BLOCKS),  # O6
    "tf32": Sizes(  # O15: products of 001's width and beyond, where they are most of the step
        SMALL,
        Size(windows=64, detectors=16, width=512, blocks=1, slstm_at=(), steps=4),
        Size(windows=64, detectors=32, width=512, slstm_at=()),
    ),
    "narrow": Sizes(  # O22: so small that a card waits for launches
        SMALL, Size(windows=16, detectors=8, width=32), Size(windows=2, detectors=8, width=32)
    ),
    "wide": Sizes(SMALL, Size(windows=16, detectors=8, width=256), Size(windows=8, detectors=325, width=128)),
    "accumulation": Sizes(SMALL, Size(windows=16, detectors=8), TWO_BLOCKS),  # O7
    "batch": Sizes(  # O14: the slow variant launches everything once per window
        Size(windows=16, detectors=4),
        Size(windows=16, detectors=4),
        Size(windows=8, detectors=48, width=128),
    ),
    "gradients": Sizes(  # O17: gradients that are a tenth of the memory
        SMALL, Size(windows=2, detectors=4, width=128), Size(windows=4, detectors=16, width=512)
    ),
    "step": Sizes(SMALL, Size(windows=2, detectors=4), TWO_BLOCKS),  # O18
    "evaluation": Sizes(SMALL, Size(windows=8, detectors=4), TWO_BLOCKS),
    "log": Sizes(*[Size(windows=2, detectors=2, width=16, blocks=1, slstm_at=())] * 3),  # O19: waits only
    "resident": Sizes(SMALL, Size(windows=8, detectors=16), TWO_BLOCKS),  # O24
    "several ranks": Sizes(  # O25
        Size(windows=8, detectors=16), Size(windows=8, detectors=16), TWO_BLOCKS
    ),
}
