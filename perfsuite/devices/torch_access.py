"""Reach torch: imported when a device asks, looked at without importing where it need not be there."""

import sys
from types import ModuleType


def load_torch() -> ModuleType | None:
    """Import torch, None where it is not installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch


def compile_state() -> tuple[int, int]:
    """Return how many graphs and frames were compiled so far; (0, 0) if nothing ever was."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return (0, 0)
    counters = dynamo.counters
    return (counters["stats"]["unique_graphs"], counters["frames"]["ok"])
