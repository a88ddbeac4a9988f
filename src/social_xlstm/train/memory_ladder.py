"""The out-of-memory ladder (O14): smaller batches and more accumulation, with the same effective batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from social_xlstm.errors import InputError

T = TypeVar("T")

_CPU_ALLOCATOR = ("DefaultCPUAllocator", "alloc_cpu.cpp", "not enough memory: you tried to allocate")
_ACCELERATOR = ("CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "MPS backend out of memory")


@dataclass(frozen=True)
class Rung:
    """One way to reach the effective batch: so many windows at a time, so many times."""

    batch_size: int
    accumulate: int = 1

    @property
    def effective(self) -> int:
        """Count the windows behind one update of the weights."""
        return self.batch_size * self.accumulate

    def lower(self) -> "Rung | None":
        """Step down to at most half the batch, keeping the effective batch exactly; None at the bottom.

        An effective batch that cannot be halved evenly takes its next smaller divisor (25 × 4 → 10 × 10).
        """
        for size in range(self.batch_size // 2, 0, -1):
            if self.effective % size == 0:
                return Rung(size, self.effective // size)
        return None

    def __str__(self) -> str:
        return f"batch_size {self.batch_size} × accumulate_grad_batches {self.accumulate}"


def is_out_of_memory(error: BaseException) -> bool:
    """Recognise a failed allocation on an accelerator, in torch's CPU allocator, or in Python itself."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in (*_CPU_ALLOCATOR, *_ACCELERATOR)
    )


def descend(start: Rung, attempt: Callable[[Rung], T], report: Callable[[str], None]) -> T:
    """Try rungs from the start downwards until one fits, reporting every step down, and return its result."""
    rung = start
    while True:
        try:
            return attempt(rung)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: until it ends, the error's frames keep the failed step's tensors alive.
        release_memory()
        lower = rung.lower()
        if lower is None:
            raise InputError(nothing_fits(start))
        report(f"out of memory with {rung}: chose {lower} (effective batch still {lower.effective})")
        rung = lower


def release_memory() -> None:
    """Release cached blocks, so that the smaller batch does not fail on fragments of the larger one."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # waits for the device; only after a failure


def nothing_fits(start: Rung) -> str:
    """Return the message that even one window is too much, and what else would help."""
    return (
        f"out of memory even with one window at a time (started at {start}); take a smaller model "
        "(model.xlstm.embedding_dim, num_blocks), fewer detectors or precision bf16-mixed"
    )
