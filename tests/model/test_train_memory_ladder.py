"""Out of memory, the batch is halved and the effective batch stays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from social_xlstm.errors import InputError
from social_xlstm.train.memory_ladder import Rung, descend, is_out_of_memory


def fits(limit: int, tried: list[int]):
    def attempt(rung: Rung) -> Rung:
        tried.append(rung.batch_size)
        if rung.batch_size > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return rung

    return attempt


@pytest.mark.parametrize(
    ("start", "limit", "chosen", "tried"),
    [
        (Rung(64), 64, Rung(64), [64]),
        (Rung(64), 63, Rung(32, 2), [64, 32]),
        (Rung(64, 2), 20, Rung(16, 8), [64, 32, 16]),
        (Rung(512), 1, Rung(1, 512), [512, 256, 128, 64, 32, 16, 8, 4, 2, 1]),
        (Rung(25, 4), 24, Rung(10, 10), [25, 10]),
        (Rung(7), 6, Rung(1, 7), [7, 1]),
    ],
)
def test_the_ladder_halves_until_it_fits(start: Rung, limit: int, chosen: Rung, tried: list[int]) -> None:
    """The first rung that fits is taken, and accumulation makes up for it (O14)."""
    seen: list[int] = []
    assert chosen == descend(start, fits(limit, seen), lambda text: None)
    assert tried == seen


def test_every_step_down_is_reported() -> None:
    """The user reads what was chosen and that the effective batch is unchanged."""
    said: list[str] = []
    descend(Rung(8), fits(2, []), said.append)
    assert [
        "out of memory with batch_size 8 × accumulate_grad_batches 1: "
        "chose batch_size 4 × accumulate_grad_batches 2 (effective batch still 8)",
        "out of memory with batch_size 4 × accumulate_grad_batches 2: "
        "chose batch_size 2 × accumulate_grad_batches 4 (effective batch still 8)",
    ] == said


def test_nothing_fits_is_a_clear_error() -> None:
    """Below one window there is no rung; the message names what else would help."""
    with pytest.raises(InputError, match=r"even with one window at a time .* smaller model"):
        descend(Rung(4), fits(0, []), lambda text: None)


@given(st.integers(1, 2000), st.integers(1, 64))
def test_a_lower_rung_keeps_the_effective_batch(batch_size: int, accumulate: int) -> None:
    """Every rung below has at most half the batch, exactly the effective batch, and the ladder ends."""
    rung: Rung | None = Rung(batch_size, accumulate)
    while rung is not None:
        lower = rung.lower()
        assert (lower is None) == (rung.batch_size == 1)
        if lower is not None:
            assert lower.effective == rung.effective
            assert 1 <= lower.batch_size <= rung.batch_size // 2
        rung = lower


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("DefaultCPUAllocator"), False),
    ],
)  # fmt: skip
def test_allocation_failures_are_recognised(error: Exception, expected: bool) -> None:
    """Accelerator, CPU allocator and Python; other errors are not mistaken for them."""
    assert expected == is_out_of_memory(error)


def test_a_real_cpu_allocation_failure_is_recognised() -> None:
    """What torch really raises for an absurd tensor is what is looked for."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**46, dtype=torch.float64)
    assert is_out_of_memory(caught.value)


def test_other_errors_pass_through() -> None:
    """The ladder does not hide a mistake in the model."""

    def broken(rung: Rung) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        descend(Rung(8), broken, lambda text: None)
