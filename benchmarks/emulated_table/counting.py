"""Count one step of a training on either card: kernels, copies, syncs and the peak of memory."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.emulated_table import more_trainings  # noqa: F401  adds its own to the list
from benchmarks.emulated_table.trainings import TRAININGS
from perfsuite import open_device
from perfsuite.devices.emulated import Runtime

ROOT = Path(__file__).parents[2]
WARM_STEPS = 2  # optimizers have their state then, libraries their workspaces


@dataclass(frozen=True)
class Counts:
    """What one step of a training does on a card."""

    kernels: int
    d2d_copies: int
    h2d_copies: int
    d2h_copies: int
    syncs: int
    peak_bytes: int

    def row(self) -> dict[str, int]:
        """Return it as it is stored."""
        return asdict(self)


def modelled(title: str, card: str = "a10") -> Counts:
    """Count a training's third step on a modelled card."""
    device = open_device(f"model:{card}", ROOT)
    device.begin_test()
    try:
        torch.manual_seed(0)
        step = TRAININGS[title](device.torch_name)
        for _ in range(WARM_STEPS + 1):
            window = device.start()
            step()
            window.mark()
            timing = window.stop()
    finally:
        device.end_test()
    done = {**timing.reported, **timing.figures}
    names = ("kernels", "d2d_copies", "h2d_copies", "d2h_copies", "syncs", "peak_memory")
    return Counts(*(int(done[name]) for name in names))


def emulated(title: str) -> Counts:
    """Count a training's third step on the emulated card of this process, as the plugin would."""
    runtime = Runtime()
    open_device("emulated:a10", ROOT).begin_test()  # cuBLAS has its workspaces from here on
    left = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    step = TRAININGS[title]("cuda:0")
    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = runtime.totals()
    step()
    after = runtime.totals()
    peak = torch.cuda.max_memory_allocated() - left
    done = {kind: after[kind][0] - before[kind][0] for kind in after}
    kernels = done["kernel"] + done["library"]
    return Counts(kernels, done["d2d"], done["h2d"], done["d2h"], done["sync"], peak)
