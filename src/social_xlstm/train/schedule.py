"""The learning rate as a function of the update, so that a resumed training needs no scheduler's state."""

import math

from social_xlstm.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, update: int, updates: int) -> float:
    """Give the rate of one update (counted from 0) of a training of so many updates.

    Both schedules rise in a straight line over the first `warmup_share` of the training; `cosine` then falls
    to zero along half a cosine, `constant` stays.
    """
    warmup = config.warmup_share * updates
    if update < warmup:
        return config.lr * (update + 1) / (warmup + 1)
    if config.schedule == "constant":
        return config.lr
    progress = min((update - warmup) / max(updates - warmup, 1.0), 1.0)
    return config.lr * 0.5 * (1 + math.cos(math.pi * progress))
