"""Performance regressions of GPU trainings, caught by pytest."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfsuite.metrics import METRICS, Metric
    from perfsuite.records import Limit, Outcome, Reading, Result, Verdict

__all__ = ["METRICS", "Limit", "Metric", "Outcome", "Reading", "Result", "Verdict"]


def __getattr__(name: str) -> Any:
    """Load the public names when they are asked for: every pytest run imports this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perfsuite import metrics, records

    return getattr(metrics if name in ("METRICS", "Metric") else records, name)
