"""The cards that can be modelled: perfsuite's table and the project's entries; rejects unknown fields."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from perfsuite.errors import DeviceMissing

PROJECT_FILE = "perfsuite-gpus.toml"
LINKS = ("nvlink", "pcie")
MOST_CARDS = 16  # of one machine: the ring models no network
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20  # DDP's defaults
# Estimates; a card's entry may override them (link_share, link_seconds). The numbers are issues on GitHub.
# Shares: NCCL's maintainers report 370 of the H100's 450 GB/s in a ring (NVIDIA/nccl-tests 212); over
# PCIe users report 20 of 31.5 GB/s (nccl-tests 178), 35 and 28 of 63 (NVIDIA/nccl 1639).
_SHARES = {"nvlink": 0.8, "pcie": 0.55}
# Seconds of one hop: from NCCL's tuning table, for rings of its Simple protocol.
_HOP_SECONDS = {"nvlink": 3.4e-6, "pcie": 5.7e-6}
_TITLES = {"nvlink": "NVLink", "pcie": "PCIe"}


@dataclass(frozen=True)
class Card:
    """A card's data sheet, and the results of a calibration."""

    name: str
    title: str
    float32: float
    bandwidth: float
    sms: int
    memory_bytes: float
    source: str
    tf32: float = 0.0
    float64: float = 0.0
    float16: float = 0.0
    bfloat16: float = 0.0
    memory_kind: str = ""
    l2_bytes: float = 4e6
    pcie_bandwidth: float = 15.75e9
    nvlink_bandwidth: float = 0.0  # of one direction to all others; 0: no NVLink
    watts: float = 0.0
    process_nm: int = 0
    generation: str = ""
    # Not from a sheet: torch's dispatch of an operator, a launch, a wait, and the least a kernel takes.
    dispatch_seconds: float = 6e-6
    launch_seconds: float = 4e-6
    sync_seconds: float = 10e-6
    kernel_seconds: float = 3e-6
    # The share of the link that collectives reach, and a hop's latency; None: the estimates above.
    link_share: float | None = None
    link_seconds: float | None = None
    is_emulated: bool = False  # calibrated on an emulated card: its corrections were predicted, not measured
    is_host: bool = False  # a processor calibrated as a card: operators run one after the other
    compute_share: float | None = None  # sustained share of the peak; None: from the sheet rules
    bandwidth_share: float | None = None
    corrections: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # kind → coefficients
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(
        default_factory=dict
    )  # operator → size, seconds
    products: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict
    )  # class of product → cost once, per item, FLOP, byte

    @property
    def is_calibrated(self) -> bool:
        """Return whether its figures were measured rather than taken from a sheet."""
        has_results = bool(self.corrections or self.curves) or self.compute_share is not None
        return has_results and not self.is_emulated

    def peak(self, precision: str) -> float:
        """Return the dense peak for a precision: float32's if the card has no faster unit for it."""
        if precision in ("float16", "bfloat16", "tf32"):
            return getattr(self, precision) or self.float32
        if precision == "float64":
            return self.float64 or self.float32 / 64  # usual on cards not made for float64
        return self.float32

    @classmethod
    def from_entry(cls, name: str, entry: Mapping[str, Any], where: str) -> "Card":
        """Read one table of a TOML file, or raise with what is wrong with it."""
        known = {item.name for item in fields(cls)} - {"name"}
        unknown = sorted(set(entry) - known)
        missing = sorted({"title", "float32", "bandwidth", "sms", "memory_bytes", "source"} - set(entry))
        if unknown or missing:
            problems = [f"unknown {', '.join(unknown)}"] if unknown else []
            problems += [f"missing {', '.join(missing)}"] if missing else []
            raise DeviceMissing(
                f"card {name!r} in {where}: {'; '.join(problems)}. Known: {', '.join(sorted(known))}"
            )
        for item, value in entry.items():
            if isinstance(value, float | int) and not isinstance(value, bool) and value < 0:
                raise DeviceMissing(f"card {name!r} in {where}: {item} is {value}, less than 0")
        corrections = {kind: tuple(map(float, row)) for kind, row in entry.get("corrections", {}).items()}
        curves = {
            op: tuple((float(x), float(y)) for x, y in row) for op, row in entry.get("curves", {}).items()
        }
        products = {kind: tuple(map(float, row)) for kind, row in entry.get("products", {}).items()}
        return cls(name=name, **{**entry, "corrections": corrections, "curves": curves, "products": products})


def load_cards(root: Path | None = None) -> dict[str, Card]:
    """Return all cards by name; the project's entries override perfsuite's."""
    table = tomllib.loads(resources.files("perfsuite.devices.model").joinpath("gpus.toml").read_text("utf-8"))
    cards = {name: Card.from_entry(name, entry, "gpus.toml") for name, entry in table.items()}
    for where, entries in _project_entries(root):
        cards |= {name: Card.from_entry(name, entry, where) for name, entry in entries.items()}
    return cards


def _project_entries(root: Path | None) -> list[tuple[str, Mapping[str, Any]]]:
    if root is None:
        return []
    documents: list[tuple[str, Mapping[str, Any]]] = []
    for name in ("pyproject.toml", PROJECT_FILE):
        try:
            document = tomllib.loads((root / name).read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise DeviceMissing(f"{name} cannot be read for cards: {error}") from None
        if name == "pyproject.toml":
            document = document.get("tool", {}).get("perfsuite", {}).get("gpus", {})
        documents.append((name, document))
    return documents


def find_card(name: str, root: Path | None = None) -> Card:
    """Return a card by name, or raise with the list of known cards."""
    cards = load_cards(root)
    if name not in cards:
        raise DeviceMissing(
            f"unknown card {name!r}; known: {', '.join(sorted(cards))}. Add your own as "
            f"[tool.perfsuite.gpus.{name}] in pyproject.toml, or measure it: python -m perfsuite calibrate"
        )
    return cards[name]


@dataclass(frozen=True)
class Link:
    """The connection between two neighbours in the ring."""

    name: str
    bandwidth: float  # of one direction, from the sheet
    share: float  # of the bandwidth that a collective reaches
    hop_seconds: float

    @property
    def title(self) -> str:
        """Return the name for people."""
        return _TITLES[self.name]


@dataclass(frozen=True)
class Ring:
    """Several cards, each connected to the next."""

    count: int
    link: Link

    def all_reduce_seconds(self, size_bytes: float) -> float:
        """Return the time until every card has the sum: k−1 steps to add up, k−1 to pass on."""
        if self.count < 2 or size_bytes <= 0:
            return 0.0
        hops = 2 * (self.count - 1)
        sent_bytes = hops / self.count * size_bytes  # by every card: each step sends a k-th
        return sent_bytes / (self.link.bandwidth * self.link.share) + hops * self.link.hop_seconds


def find_cards(name: str, root: Path | None = None) -> tuple[Card, Ring | None]:
    """Return the card and the ring of `a10`, `4xa10` or `4xa10@pcie`; a single card has no ring."""
    if name in load_cards(root):
        return find_card(name, root), None
    rest, has_link, link_name = name.partition("@")
    several = re.fullmatch(r"(\d+)x(.+)", rest)
    count, card_name = (int(several[1]), several[2]) if several else (1, rest)
    card = find_card(card_name, root)
    if not 1 <= count <= MOST_CARDS:
        raise DeviceMissing(f"{count} cards in model:{name} cannot be modelled; known: 1 to {MOST_CARDS}")
    if has_link and link_name not in LINKS:
        raise DeviceMissing(f"unknown link {link_name!r} in model:{name}; known: {', '.join(LINKS)}")
    if count == 1:
        if has_link:
            raise DeviceMissing(
                f"model:{name} is one card, a link joins several: model:2x{card_name}@{link_name}"
            )
        return card, None
    if card.is_host:
        raise DeviceMissing(f"{card_name!r} is a processor calibrated as a card: only one of it is modelled")
    if link_name == "nvlink" and not card.nvlink_bandwidth:
        raise DeviceMissing(_no_nvlink(card, root))
    return card, Ring(count, link_of(card, link_name or None))


def _no_nvlink(card: Card, root: Path | None) -> str:
    with_nvlink = sorted(known.name for known in load_cards(root).values() if known.nvlink_bandwidth)
    return (
        f"{card.title} has no NVLink; cards that have it: {', '.join(with_nvlink)}. Use @pcie, or add "
        "nvlink_bandwidth (bytes per second in one direction) to its entry"
    )


def link_of(card: Card, name: str | None = None) -> Link:
    """Return a card's link: NVLink if it has it, else PCIe through the host."""
    name = name or ("nvlink" if card.nvlink_bandwidth else "pcie")
    return Link(
        name,
        card.nvlink_bandwidth if name == "nvlink" else card.pcie_bandwidth,
        _SHARES[name] if card.link_share is None else card.link_share,
        _HOP_SECONDS[name] if card.link_seconds is None else card.link_seconds,
    )


def buckets(sizes: Sequence[int]) -> list[range]:
    """Split gradients into buckets as DDP does, in order of arrival; the one that fills a bucket is in it."""
    split: list[range] = []
    begin, filled = 0, 0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= (BUCKET_BYTES if split else FIRST_BUCKET_BYTES):
            split.append(range(begin, index + 1))
            begin, filled = index + 1, 0
    if begin < len(sizes):
        split.append(range(begin, len(sizes)))
    return split
