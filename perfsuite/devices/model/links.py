"""Several modelled cards: the link between them, and what an all-reduce over it takes; no torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfsuite.devices.model.cards import Card, find_card, load_cards
from perfsuite.errors import DeviceMissing

LINKS = ("nvlink", "pcie")
MOST_CARDS = 16  # of one machine: the ring knows no network
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20  # DDP's, unless it is told otherwise
# Estimates; a card's entry may say otherwise (link_share, link_seconds). The numbers name issues on GitHub.
# Shares: NCCL's maintainers speak of 370 of the H100's 450 GB/s in a ring (NVIDIA/nccl-tests 212); over
# PCIe people report 20 of 31.5 GB/s (nccl-tests 178), 35 and 28 of 63 (NVIDIA/nccl 1639).
_SHARES = {"nvlink": 0.8, "pcie": 0.55}
# Seconds of one hop: what NCCL's own tuning table has for rings of its Simple protocol.
_HOP_SECONDS = {"nvlink": 3.4e-6, "pcie": 5.7e-6}
_TITLES = {"nvlink": "NVLink", "pcie": "PCIe"}


@dataclass(frozen=True)
class Link:
    """What joins two neighbours in the ring."""

    name: str
    bandwidth: float  # of one direction, from the sheet
    share: float  # of it that a collective reaches
    hop_seconds: float

    @property
    def title(self) -> str:
        """Return the name as people write it."""
        return _TITLES[self.name]


@dataclass(frozen=True)
class Ring:
    """So many cards, each joined to the next."""

    count: int
    link: Link

    def all_reduce_seconds(self, size_bytes: float) -> float:
        """Return what it takes until every card has the sum of all: k−1 steps to add up, k−1 to pass on."""
        if self.count < 2 or size_bytes <= 0:
            return 0.0
        hops = 2 * (self.count - 1)
        sent_bytes = hops / self.count * size_bytes  # by every card: each step sends a k-th
        return sent_bytes / (self.link.bandwidth * self.link.share) + hops * self.link.hop_seconds


def find_cards(name: str, root: Path | None = None) -> tuple[Card, Ring | None]:
    """Return the card and the ring of `a10`, `4xa10` or `4xa10@pcie`; one card has none."""
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
    having = sorted(other.name for other in load_cards(root).values() if other.nvlink_bandwidth)
    return (
        f"{card.title} has no NVLink; cards that have it: {', '.join(having)}. Use @pcie, or give its entry "
        "nvlink_bandwidth (bytes a second in one direction)"
    )


def link_of(card: Card, name: str | None = None) -> Link:
    """Return a card's link: NVLink where it has it, else PCIe through the host."""
    name = name or ("nvlink" if card.nvlink_bandwidth else "pcie")
    return Link(
        name,
        card.nvlink_bandwidth if name == "nvlink" else card.pcie_bandwidth,
        _SHARES[name] if card.link_share is None else card.link_share,
        _HOP_SECONDS[name] if card.link_seconds is None else card.link_seconds,
    )


def buckets(sizes: Sequence[int]) -> list[range]:
    """Cut gradients, in the order they arrive, as DDP does: whoever fills a bucket still belongs to it."""
    cut: list[range] = []
    begin, filled = 0, 0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= (BUCKET_BYTES if cut else FIRST_BUCKET_BYTES):
            cut.append(range(begin, index + 1))
            begin, filled = index + 1, 0
    if begin < len(sizes):
        cut.append(range(begin, len(sizes)))
    return cut
