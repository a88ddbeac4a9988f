"""Start processes on an emulated card: the run's folder, the card described in it, the environment."""

import contextlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfsuite.devices.emulated.library import build, preloads
from perfsuite.devices.emulated.torch_build import TorchBuild
from perfsuite.devices.model.cards import Card, find_card
from perfsuite.devices.model.rules import shipped_rules
from perfsuite.devices.model.sustained import bandwidth_share
from perfsuite.errors import DeviceMissing

RUN = "PERFSUITE_EMULATED_RUN"  # the run's folder, read by the library
NAME = "PERFSUITE_EMULATED"  # the cards of this process, such as 2xa10
MOST_CARDS = 16
_PREFIX = "perfsuite-emulated-"
# Compute capability, and what a multiprocessor holds: threads, blocks, bytes of shared memory, a block's most
# (CUDA C++ Programming Guide, «Compute Capabilities»).
_CAPABILITIES: Mapping[str, tuple[int, int, int, int, int, int]] = {
    "pascal": (6, 1, 2048, 32, 98304, 49152),
    "volta": (7, 0, 2048, 32, 98304, 98304),
    "turing": (7, 5, 1024, 16, 65536, 65536),
    "ampere": (8, 6, 1536, 16, 102400, 101376),
    "ada": (8, 9, 1536, 24, 102400, 101376),
    "hopper": (9, 0, 2048, 32, 233472, 232448),
}
_LARGE = {
    "pascal": (6, 0, 2048, 32, 65536, 49152),
    "ampere": (8, 0, 2048, 32, 167936, 166912),
}  # those with HBM
_CLOCKS = {"a10": (1695, 6251)}  # MHz; of others only the multiprocessors' is estimated from its peak
_CORES_PER_SM = {"pascal": 64, "volta": 64, "turing": 64, "ampere": 128, "ada": 128, "hopper": 128}
# The model's own shares of the bus and what a copy takes to start (devices/model/timeline.py).
_PINNED_SHARE, _PAGEABLE_SHARE, _COPY_NS = 0.85, 0.45, 10_000


@dataclass(frozen=True)
class Wanted:
    """What --perf-device=emulated:… or `emulate …` names."""

    card: Card
    count: int = 1

    @property
    def name(self) -> str:
        """Return it as it is spelled."""
        return self.card.name if self.count == 1 else f"{self.count}x{self.card.name}"

    @classmethod
    def from_name(cls, text: str, root: Path | None = None) -> "Wanted":
        """Read a10 or 4xa10, or say what is wrong with it."""
        several = re.fullmatch(r"(\d+)x(.+)", text)
        count, name = (int(several.group(1)), several.group(2)) if several else (1, text)
        if not 1 <= count <= MOST_CARDS:
            raise DeviceMissing(f"emulated:{text}: 1 to {MOST_CARDS} cards can be emulated")
        return cls(find_card(name, root), count)


def current() -> str | None:
    """Return what this process was started on, None where it runs on no emulated card."""
    return os.environ.get(NAME) if os.environ.get(RUN) else None


def environment(wanted: Wanted, given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment that lets a process see these cards; describes them in the run's folder."""
    libraries = build(TorchBuild.installed())
    (folder / "card.txt").write_text(describe(wanted), encoding="utf-8")
    before = given.get("LD_PRELOAD", "")
    return {
        **given,
        "LD_PRELOAD": preloads(libraries) + (f":{before}" if before else ""),
        RUN: str(folder),
        NAME: wanted.name,
        "TRITON_LIBCUDA_PATH": str(libraries),
    }


def new_folder() -> Path:
    """Make the folder of one run: in memory where there is such a place, since cards live in it.

    It is this process's, also after it has become another program by exec; runs that were killed left theirs.
    """
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    for left in place.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another run that begins now clears away as well
            if owner.isdecimal() and not Path("/proc", owner).exists() and left.stat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))


def leave_folder() -> None:
    """Remove the run's folder, if this process is the one it was made for."""
    folder = Path(os.environ.get(RUN, "/"))
    if folder.name.startswith(f"{_PREFIX}{os.getpid()}-"):
        shutil.rmtree(folder, ignore_errors=True)


def describe(wanted: Wanted) -> str:
    """Return the cards as the library reads them; each run's have numbers of their own, as its locks need."""
    card = wanted.card
    capability = _CAPABILITIES.get(card.generation, _CAPABILITIES["ampere"])
    if card.memory_kind.startswith("hbm"):
        capability = _LARGE.get(card.generation, capability)
    major, minor, threads, blocks, shared, most = capability
    clock, memory_clock = _CLOCKS.get(card.name, (_boost(card), 0))
    identity = uuid.uuid4().bytes
    lines: dict[str, object] = {
        "name": f"{card.title} (emulated)",
        "devices": wanted.count,
        "major": major,
        "minor": minor,
        "sms": card.sms,
        "sm_clock_mhz": clock,
        "memory_clock_mhz": memory_clock,
        "memory_bus_bits": 4096 if card.memory_kind.startswith("hbm") else 384,
        "threads_per_sm": threads,
        "blocks_per_sm": blocks,
        "shared_per_sm": shared,
        "shared_per_block": most,
        "memory_bytes": int(card.memory_bytes),
        "l2_bytes": int(card.l2_bytes),
        "float32": card.peak("float32") / 1e9,
        "float64": card.peak("float64") / 1e9,
        "half": card.peak("float16") / 1e9,
        "tf32": card.peak("tf32") / 1e9,
        "bytes_per_ns": card.bandwidth * bandwidth_share(card, shipped_rules().sheet) / 1e9,
        "pinned_bytes_per_ns": card.pcie_bandwidth * _PINNED_SHARE / 1e9,
        "pageable_bytes_per_ns": card.pcie_bandwidth * _PAGEABLE_SHARE / 1e9,
        "kernel_ns": round(1e9 * card.kernel_seconds),
        "copy_ns": _COPY_NS,
        # The last byte counts the cards on.
        "uuid": (identity[:15] + b"\0").hex(),
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items())


def _boost(card: Card) -> int:
    """Return the clock that the sheet's float32 peak follows from: two operations a core and cycle."""
    return round(card.float32 / (2 * card.sms * _CORES_PER_SM.get(card.generation, 128)) / 1e6)
