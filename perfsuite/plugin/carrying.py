"""Carry a test's whole result from a worker of pytest-xdist to the process that reports: as text, by pickle.

Both processes are ours, on one machine, and the one has started the other: what is read back was written by
this very version.
"""

import base64
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfsuite.environment import Environment
from perfsuite.records import Reading, Result


@dataclass(frozen=True)
class Carried:
    """What one test leaves behind in a worker."""

    result: Result | None
    environments: Mapping[str, Environment]  # by device
    line: int | None = None
    params: Mapping[str, object] | None = None
    benchmarked: int = 0


def pack(carried: Carried) -> str:
    """Return text that survives the way between processes."""
    return base64.b64encode(pickle.dumps(carried)).decode("ascii")


def unpack(text: str, card: int) -> Carried:
    """Read what a worker packed; its only card, cuda:0, gets the number that it has among all."""
    carried: Carried = pickle.loads(base64.b64decode(text))
    result = carried.result
    if result is not None:
        result = replace(result, readings=tuple(_renamed(reading, card) for reading in result.readings))
    environments = {_name(device, card): found for device, found in carried.environments.items()}
    return replace(carried, result=result, environments=environments)


def _name(device: str, card: int) -> str:
    return f"cuda:{card}" if device == "cuda:0" else device


def _renamed(reading: Reading, card: int) -> Reading:
    without = None if reading.without is None else _renamed(reading.without, card)
    return replace(reading, device=_name(reading.device, card), without=without)
