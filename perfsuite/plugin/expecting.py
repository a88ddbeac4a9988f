"""What a test is expected to reach, from its markers, the options and what is stored for its environment."""

from collections.abc import Mapping

from perfsuite.collect.limits import SecondStage, expect
from perfsuite.environment import Environment
from perfsuite.metrics import Tolerance
from perfsuite.noise import LEAST_SESSIONS
from perfsuite.plugin.settings import Options
from perfsuite.records import Expectation, Limit, Settings
from perfsuite.remember import files as baselines


def expectation(
    test: str,
    limits: tuple[Limit, ...],
    settings: Settings,
    tolerances: Mapping[str, Tolerance],
    *,
    environment: Environment,
    options: Options,
) -> Expectation:
    """Find the baseline of a test and join it with what its markers ask."""
    stored = baselines.find(options.baseline_dir, test, environment)
    return expect(
        limits,
        settings,
        stored=stored.values,
        conditions=stored.conditions,
        places=stored.places,
        match=stored.match,
        match_reason=stored.reason,
        device_tolerances=tolerances,
        sessions=stored.sessions,
        second=SecondStage(options.confirm, options.family_error),
        before=stored.readings,
        environment=stored.environment.to_stored() if stored.environment else {},
    )


def wants_references(expectation: Expectation, options: Options) -> bool:
    """Tell whether references are needed: for a baseline's sessions, or by a limit made of them."""
    limits = [*expectation.limits, *(one for stored in expectation.by_reading.values() for one in stored)]
    is_saving = options.save_baseline and options.sessions >= LEAST_SESSIONS
    return is_saving or any(limit.metric.is_relative for limit in limits)
