"""An emulated GPU: torch's real CUDA build on a runtime of our own; counts are real, times predicted."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from perfsuite.devices.protocol import Device, DeviceKind
from perfsuite.lazy import lazy_names


def _open(card: str, root: Path | None) -> Device | None:
    from perfsuite.devices.emulated.device import open_emulated
    from perfsuite.devices.emulated.launch import Wanted, current
    from perfsuite.errors import DeviceMissing

    here = current()
    if not card and here is None:
        return None
    wanted = Wanted.from_name(card or here or "", root)
    if here is not None and here != wanted.name:
        raise DeviceMissing(
            f"emulated:{wanted.name}: this process was started on emulated:{here}; a run has one kind of card"
        )
    return open_emulated(wanted, root or Path.cwd())


def _count() -> int:
    from perfsuite.devices.emulated.launch import Wanted, current

    here = current()
    return 0 if here is None else Wanted.from_name(here).count


def _environment(card: str, root: Path | None, given: Mapping[str, str]) -> Mapping[str, str] | None:
    from perfsuite.devices.emulated.launch import Wanted, current, environment, new_folder
    from perfsuite.errors import DeviceMissing

    if not card or current() is not None:
        return None
    wanted, folder = Wanted.from_name(card, root), new_folder()
    try:
        return environment(wanted, given, folder)
    except DeviceMissing:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _visible_cards(given: Mapping[str, str]) -> tuple[str, ...]:
    from perfsuite.devices.cuda.identity import cards_to_share

    return cards_to_share(given)


KIND = DeviceKind(
    "emulated",
    ("emulated:CARD", "emulated:NxCARD"),
    _open,
    _count,
    covers="cuda",
    environment=_environment,
    visible_variable="CUDA_VISIBLE_DEVICES",
    visible_cards=_visible_cards,
)

# What others may use of this folder, loaded on first use.
_HOMES = {
    **dict.fromkeys(("Wanted", "current", "describe", "environment", "leave_folder", "new_folder"), "launch"),
    **dict.fromkeys(("build", "preloads"), "library"),
    "TorchBuild": "torch_build",
    **dict.fromkeys(("Count", "demangle", "read_counts", "render_counts", "render_refused"), "counts"),
    "Runtime": "runtime",
}
__all__ = ["KIND", *_HOMES]  # noqa: PLE0604
__getattr__ = lazy_names(__name__, _HOMES)
