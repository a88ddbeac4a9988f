"""What can be handed to the perf fixture, checked before anything is measured."""

from collections.abc import Iterable

from perfsuite.errors import UnusableStep


def check_callable(value: object, name: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise UnusableStep(
            f"{name} must be callable, got {type(value).__name__}; hand over the function itself"
        )


def check_samples(value: object) -> None:
    """Refuse what is no number of samples."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnusableStep(f"samples_per_step must be a whole number of at least 1, got {value!r}")


def check_loader(value: object) -> None:
    """Refuse what gives no batches."""
    if not isinstance(value, Iterable):
        raise UnusableStep(f"perf.loop needs a loader to iterate over, got {type(value).__name__}")
