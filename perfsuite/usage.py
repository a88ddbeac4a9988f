"""What the system counted for this process and its ended children; 0 on systems that do not count it."""

import importlib
from typing import Any


def page_faults() -> int:
    """Return how many pages of memory this process has fetched from the system."""
    resource = _resource()
    return 0 if resource is None else int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def ended_children_seconds() -> float:
    """Return the CPU seconds of children that have ended."""
    resource = _resource()
    if resource is None:
        return 0.0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(used.ru_utime + used.ru_stime)


def _resource() -> Any:
    try:
        return importlib.import_module("resource")
    except ModuleNotFoundError:  # Windows
        return None
