"""NVIDIA GPUs: CUDA events for time, torch's allocator for memory, NVML for utilization and conditions."""

from collections.abc import Mapping
from pathlib import Path

from perfsuite.devices.protocol import Device, DeviceKind
from perfsuite.lazy import lazy_names


def _open(index: str, _root: Path | None) -> Device | None:
    from perfsuite.devices.cuda.device import open_cuda

    if index and not index.isdecimal():
        return None
    return open_cuda(int(index) if index else None)


def _count() -> int:
    from perfsuite.devices.cuda.device import available_count

    return available_count()


def _visible_cards(environment: Mapping[str, str]) -> tuple[str, ...]:
    from perfsuite.devices.cuda.identity import cards_to_share

    return cards_to_share(environment)


KIND = DeviceKind(
    "cuda",
    ("cuda", "cuda:N"),
    _open,
    _count,
    visible_variable="CUDA_VISIBLE_DEVICES",
    visible_cards=_visible_cards,
)

# The names other folders may use, imported on first access.
_HOMES = {
    "open_nvml": "nvml",
    **dict.fromkeys(("PERIOD_SECONDS", "Sampler"), "sampler"),
    **dict.fromkeys(("MIN_PERIODS", "dominant_period"), "series"),
}
__all__ = ["KIND", *_HOMES]  # noqa: PLE0604
__getattr__ = lazy_names(__name__, _HOMES)
