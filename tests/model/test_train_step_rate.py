"""The learning rate is a function of the update alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from social_xlstm.config import OptimizerConfig
from social_xlstm.train.step import learning_rate


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0.0, [1.0, 1.0, 1.0, 1.0]),
        ("constant", 0.5, [1 / 3, 2 / 3, 1.0, 1.0]),
        ("cosine", 0.0, [1.0, 0.853553, 0.5, 0.146447]),
        ("cosine", 0.5, [1 / 3, 2 / 3, 1.0, 0.5]),
    ],
)
def test_rates_of_a_training_of_four_updates(schedule: str, warmup: float, expected: list[float]) -> None:
    """Up in a straight line, then constant or down half a cosine."""
    config = OptimizerConfig(lr=1.0, schedule=schedule, warmup_share=warmup)  # type: ignore[arg-type]
    assert pytest.approx(expected, abs=1e-6) == [learning_rate(config, update, 4) for update in range(4)]


@given(
    st.integers(1, 5000),
    st.floats(0, 0.99),
    st.sampled_from(["constant", "cosine"]),
    st.floats(1e-6, 10),
)
def test_rates_stay_between_zero_and_the_configured_one(
    updates: int, warmup: float, schedule: str, lr: float
) -> None:
    """No update, not even one beyond the plan, has a negative rate or one above the configured."""
    config = OptimizerConfig(lr=lr, schedule=schedule, warmup_share=warmup)  # type: ignore[arg-type]
    for update in {0, updates // 3, updates - 1, updates + 7}:
        assert 0 <= learning_rate(config, update, updates) <= lr * (1 + 1e-9)
