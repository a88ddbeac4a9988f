"""The cards that can be modelled: perfsuite's own table and what the project adds; refuses unknown fields."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from perfsuite.errors import DeviceMissing

PROJECT_FILE = "perfsuite-gpus.toml"


@dataclass(frozen=True)
class Card:
    """A card's sheet, and what a calibration found on it."""

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
    nvlink_bandwidth: float = 0.0  # of one direction to all others; 0: it has none
    watts: float = 0.0
    process_nm: int = 0
    generation: str = ""
    # From no sheet: torch's dispatch of an operator, a launch, a wait, and the least a kernel takes.
    dispatch_seconds: float = 6e-6
    launch_seconds: float = 4e-6
    sync_seconds: float = 10e-6
    kernel_seconds: float = 3e-6
    # What collectives reach of their link, and a hop's latency; None: links.py's estimates.
    link_share: float | None = None
    link_seconds: float | None = None
    is_host: bool = False  # a processor calibrated as a card: operators run one after the other
    compute_share: float | None = None  # sustained share of the peak; None: from the sheet's rules
    bandwidth_share: float | None = None
    corrections: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # family → coefficients
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(
        default_factory=dict
    )  # operator → size, seconds
    products: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict
    )  # class of product → cost once, per item, FLOP, byte

    @property
    def is_calibrated(self) -> bool:
        """Tell whether its figures were measured rather than read off a sheet."""
        return bool(self.corrections or self.curves) or self.compute_share is not None

    def peak(self, precision: str) -> float:
        """Return the dense peak for a precision: float32's where the card has no faster unit for it."""
        if precision in ("float16", "bfloat16", "tf32"):
            return getattr(self, precision) or self.float32
        if precision == "float64":
            return self.float64 or self.float32 / 64  # of cards made for something else
        return self.float32

    @classmethod
    def from_entry(cls, name: str, entry: Mapping[str, Any], where: str) -> "Card":
        """Read one table of a TOML file, or say what is wrong with it."""
        known = {item.name for item in fields(cls)} - {"name"}
        unknown = sorted(set(entry) - known)
        missing = sorted({"title", "float32", "bandwidth", "sms", "memory_bytes", "source"} - set(entry))
        if unknown or missing:
            said = [f"unknown {', '.join(unknown)}"] if unknown else []
            said += [f"missing {', '.join(missing)}"] if missing else []
            raise DeviceMissing(
                f"card {name!r} in {where}: {'; '.join(said)}. Known: {', '.join(sorted(known))}"
            )
        for item, value in entry.items():
            if isinstance(value, float | int) and not isinstance(value, bool) and value < 0:
                raise DeviceMissing(f"card {name!r} in {where}: {item} is {value}, less than 0")
        corrections = {family: tuple(map(float, row)) for family, row in entry.get("corrections", {}).items()}
        curves = {
            op: tuple((float(x), float(y)) for x, y in row) for op, row in entry.get("curves", {}).items()
        }
        products = {family: tuple(map(float, row)) for family, row in entry.get("products", {}).items()}
        return cls(name=name, **{**entry, "corrections": corrections, "curves": curves, "products": products})


def load_cards(root: Path | None = None) -> dict[str, Card]:
    """Return all cards by name; the project's own come last and win."""
    own = tomllib.loads(resources.files("perfsuite.devices.model").joinpath("gpus.toml").read_text("utf-8"))
    cards = {name: Card.from_entry(name, entry, "gpus.toml") for name, entry in own.items()}
    for where, entries in _project_entries(root):
        cards |= {name: Card.from_entry(name, entry, where) for name, entry in entries.items()}
    return cards


def _project_entries(root: Path | None) -> list[tuple[str, Mapping[str, Any]]]:
    if root is None:
        return []
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name in ("pyproject.toml", PROJECT_FILE):
        try:
            document = tomllib.loads((root / name).read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise DeviceMissing(f"{name} cannot be read for cards: {error}") from None
        if name == "pyproject.toml":
            document = document.get("tool", {}).get("perfsuite", {}).get("gpus", {})
        found.append((name, document))
    return found


def find_card(name: str, root: Path | None = None) -> Card:
    """Return a card by name, or list those there are."""
    cards = load_cards(root)
    if name not in cards:
        raise DeviceMissing(
            f"unknown card {name!r}; known: {', '.join(sorted(cards))}. Add your own as "
            f"[tool.perfsuite.gpus.{name}] in pyproject.toml, or measure it: python -m perfsuite calibrate"
        )
    return cards[name]
