"""Tell whether torch.compile is still at work, without importing anything for it."""

import sys


def compile_state() -> tuple[int, int]:
    """Return how many graphs and frames were compiled so far; (0, 0) if nothing ever was."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return (0, 0)
    counters = dynamo.counters
    return (counters["stats"]["unique_graphs"], counters["frames"]["ok"])
