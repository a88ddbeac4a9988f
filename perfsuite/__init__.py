"""Performance regressions of GPU trainings, caught by pytest."""

from perfsuite.records import METRICS, Limit, Metric, Outcome, Reading, Result, Verdict

__all__ = ["METRICS", "Limit", "Metric", "Outcome", "Reading", "Result", "Verdict"]
