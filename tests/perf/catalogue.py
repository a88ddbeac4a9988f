"""The optimizations this suite proves, by number, and the one reason why a figure needs a real card."""

from typing import NamedTuple


class Optimization(NamedTuple):
    """One optimization of the catalogue."""

    title: str
    needs_card: str = ""  # what only a real card can tell, where that is so


CATALOGUE: dict[str, Optimization] = {
    "O1": Optimization("shared encoder, centralized batch"),
    "O2": Optimization("detectors in groups"),
    "O3": Optimization("shared encoder, own heads"),
    "O4": Optimization("independent weights, stacked"),
    "O5": Optimization("centralized collate"),
    "O6": Optimization("mixed precision", "its speed: half-precision units have no counterpart here"),
    "O7": Optimization("gradient accumulation"),
    "O8": Optimization("number of workers"),
    "O9": Optimization("prefetching"),
    "O10": Optimization("persistent workers"),
    "O11": Optimization("pinned memory", "its bandwidth: there is no bus to a card here"),
    "O12": Optimization("non-blocking transfer"),
    "O13": Optimization("drop_last and timeout"),
    "O14": Optimization("batch size, memory ladder"),
    "O15": Optimization("TF32 products", "its speed: TF32 units have no counterpart here"),
    "O16": Optimization("torch.compile"),
    "O17": Optimization("set_to_none"),
    "O18": Optimization("no host sync"),
    "O19": Optimization("logging every n steps"),
    "O20": Optimization("sync-free sLSTM"),
    "O21": Optimization("pooling over real positions"),
    "O22": Optimization("compute density", "its busy share: only a card can be idle between kernels"),
    "O23": Optimization("cached, mapped data"),
    "O24": Optimization("data on the device"),
    "O25": Optimization("several processes"),
    "O26": Optimization("steady utilization"),
}
