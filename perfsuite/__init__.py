"""Catch performance regressions of GPU trainings with pytest."""

from typing import TYPE_CHECKING

from perfsuite.lazy import lazy_names

if TYPE_CHECKING:
    from perfsuite.devices.cuda.monitor import GpuMonitor
    from perfsuite.devices.open import open_device
    from perfsuite.devices.protocol import Device, Plan, Timing, Window
    from perfsuite.metrics import METRICS, Metric, Tolerance
    from perfsuite.plugin.fixture import Perf
    from perfsuite.records import DeviceFacts, Insight, Limit, Outcome, Reading, Result, Verdict
    from perfsuite.units import Unit, show

# Public name → its module. Loaded on first use, because every pytest run imports this package.
_HOMES = {
    "Perf": "plugin.fixture",
    **dict.fromkeys(
        ("Reading", "Limit", "Verdict", "Outcome", "Result", "DeviceFacts", "Insight"), "records"
    ),
    **dict.fromkeys(("METRICS", "Metric", "Tolerance"), "metrics"),
    **dict.fromkeys(("Device", "Window", "Timing", "Plan"), "devices.protocol"),
    "open_device": "devices.open",
    "GpuMonitor": "devices.cuda.monitor",
    **dict.fromkeys(("Unit", "show"), "units"),
}
__all__ = [
    "METRICS",
    "Device",
    "DeviceFacts",
    "GpuMonitor",
    "Insight",
    "Limit",
    "Metric",
    "Outcome",
    "Perf",
    "Plan",
    "Reading",
    "Result",
    "Timing",
    "Tolerance",
    "Unit",
    "Verdict",
    "Window",
    "open_device",
    "show",
]
__getattr__ = lazy_names(__name__, _HOMES)
