"""What a step takes on the card, predicted from its kernels and the host of the card's entry."""

import pytest

# A build for CUDA without NVIDIA's libraries can be imported on an emulated card only; make test has another.
pytest.importorskip("torch", exc_type=ImportError)

from perfsuite.devices.emulated.learn import Lesson, predicted
from perfsuite.devices.emulated.runtime import Call
from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.model.cards import find_card
from perfsuite.devices.model.uncertainty import kernel_error

CARD = find_card("a10")  # 10 µs to dispatch and launch, 10 µs a sync, kernels of 3 µs at least, 31.5 GB/s
SHAPE = (1, 1, 1, 32, 1, 1)


def lesson_of(*seconds, unexplained=0):
    """A lesson of launches: those an operator explains, each with its time, and those none does."""
    lesson = Lesson(CARD)
    for number, took in enumerate(seconds):
        key = ("kernel", f"kernel {number}", SHAPE)
        lesson.note(Call(*key[:2], 0, SHAPE))
        lesson.found[key].append(took)
    for _ in range(unexplained):
        lesson.note(Call("kernel", "a kernel of one's own", 0, SHAPE))
    return lesson


def test_kernels_take_what_their_operators_take_and_at_least_the_least():
    """1 ms, one that is shorter than any kernel, and two that no operator explains."""
    lesson = lesson_of(1e-3, 1e-6, unexplained=2)
    assert 1e-3 + 3 * 3e-6 == pytest.approx(lesson.kernel_seconds())


def test_launches_of_one_geometry_share_their_mean():
    """Which keeps the sum of the step."""
    lesson = lesson_of(1e-3)
    key = next(iter(lesson.found))
    lesson.note(Call(*key[:2], 0, SHAPE))
    lesson.found[key].append(3e-3)
    assert {key: 2e-3} == lesson.durations()
    assert 4e-3 == pytest.approx(lesson.kernel_seconds())


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"kernels": 10}, 1e-3),  # the card takes longer
        ({"kernels": 500}, 5e-3),  # its host does
        ({"kernels": 10, "h2d_bytes": 63e6}, 3e-3),
        ({"kernels": 10, "syncs": 12}, 1e-3 + 12 * 10e-6),
    ],
)
def test_the_slower_of_card_and_host_decides(counts, expected):
    """Whatever this machine's processor is doing."""
    found = predicted(lesson_of(1e-3), counts, CARD)
    assert (1e-3, pytest.approx(expected)) == (
        found["predicted_kernel_seconds"],
        found["predicted_step_seconds"],
    )


def test_a_prediction_says_how_far_it_is_off():
    """Kernels by the error of their rules; a step that waits for its host by what is assumed of hosts."""
    lesson = lesson_of(1e-3)
    kernel = Kernel("mm", KernelKind.LINEAR, 2.0 * 1024**3, 2**23, 2**22, "float32", 1, (1, *[1024] * 3))
    lesson.spent.append((kernel, 1e-3))
    busy, waiting = (predicted(lesson, {"kernels": count}, CARD) for count in (10, 100_000))
    assert kernel_error(kernel, CARD) == pytest.approx(busy["predicted_step_error"])
    assert 0.3 == pytest.approx(waiting["predicted_step_error"], abs=0.01)
