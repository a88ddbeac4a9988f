"""The measured kernels: what was run, on which card, how long it took."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perfsuite.devices import KernelKind
from perfsuite.devices.model import Card, Rules, load_cards, product_seconds, rates_of, row_seconds

Predict = Callable[[Card, Rules, Any], Any]  # card, rules, columns → seconds
_OTHER_TITLES = {"NVIDIA H100 80GB HBM3": "h100", "V100": "v100", "P100": "p100", "T4": "t4"}


@dataclass(frozen=True)
class Group:
    """Kernels of one kind on one card, from one source."""

    kind: str
    card: str
    source: str
    columns: Any  # sizes: a row for each size, a column for each kernel
    flops: Any
    moved_bytes: Any
    seconds: Any
    predict: Predict
    precision: str = "float32"
    is_alone: bool = False  # each call was timed by itself, with the way to the card and back

    def predicted(self, card: Card, rules: Rules, alone_seconds: float = 0.0) -> Any:
        """Return the seconds that the rules predict, and what timing a call by itself adds."""
        return self.predict(card, rules, self.columns) + (alone_seconds if self.is_alone else 0.0)

    def thinned(self, most: int) -> "Group":
        """Return at most that many kernels, evenly chosen."""
        chosen = np.unique(np.linspace(0, len(self.seconds) - 1, most).astype(int))
        return self.only(chosen)

    def only(self, chosen: Any) -> "Group":
        """Return some of the kernels, by their places."""
        return replace(
            self,
            columns=self.columns[:, chosen],
            flops=self.flops[chosen],
            moved_bytes=self.moved_bytes[chosen],
            seconds=self.seconds[chosen],
        )


def name_of(device: str) -> str:
    """Return a device's name in the table of cards."""
    titles = {card.title: card.name for card in load_cards().values()}
    return titles[device] if device in titles else _OTHER_TITLES[device]


def read(path: Path) -> list[dict[str, str]]:
    """Return the lines of a file."""
    with path.open(newline="") as text:
        return list(csv.DictReader(text))


def grouped(
    lines: list[dict[str, str]], by: Callable[[dict[str, str]], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], list[dict[str, str]]]]:
    """Yield the lines of each key."""
    keys: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        keys.setdefault(by(line), []).append(line)
    yield from keys.items()


def columns(lines: list[dict[str, str]], names: str) -> Any:
    """Return sizes as arrays."""
    return np.array([[float(line[name]) for line in lines] for name in names.split()])


def predict_linear(card: Card, rules: Rules, sizes: Any) -> Any:
    return product_seconds(sizes, rates_of(card, rules.sheet), rules.products)


def products(folder: Path) -> Iterator[Group]:
    """Yield linear layers and batches of products, forward, in FP32 without TF32."""
    for (device, op), lines in grouped(
        read(folder / "gpu_op_times" / "products.csv"), lambda line: (line["device"], line["op"])
    ):
        sizes = columns(lines, "batch rows width contraction")
        seconds = columns(lines, "latency_ms")[0] / 1e3
        work = product_work(sizes)
        yield Group(op, name_of(device), "NeuSight", sizes, *work, seconds, predict_linear, is_alone=True)


def product_work(sizes: Any, element_bytes: int = 4) -> tuple[Any, Any]:
    """Return the FLOPs and the moved bytes of products."""
    batch, m, n, k = sizes
    return 2 * batch * m * n * k, element_bytes * batch * (m * k + k * n + m * n)


def shape_of(line: dict[str, str]) -> dict[str, str]:
    """Return DeepBench's sizes by name."""
    return dict(pair.split("=") for pair in line["shape"].split())


def general_products(folder: Path) -> Iterator[Group]:
    """Yield DeepBench's products: narrow ones, long contractions, all layouts."""
    lines = [line for line in read(folder / "gpu_op_times" / "deepbench.csv") if line["op"] == "gemm"]
    for (device, precision), chosen in grouped(lines, lambda line: (line["device"], line["precision"])):
        if precision != "fp32":
            continue
        sizes = columns([{**shape_of(line), "one": "1"} for line in chosen], "one m n k")
        seconds = columns(chosen, "forward_ms")[0] / 1e3
        yield Group("gemm", name_of(device), "DeepBench", sizes, *product_work(sizes), seconds, predict_gemm)


def predict_gemm(card: Card, rules: Rules, sizes: Any) -> Any:
    return product_seconds(sizes, rates_of(card, rules.sheet), rules.products, is_linear=False)


_SIMPLE = ("add", "addu", "mul", "mulu", "div", "divu", "pow", "powu", "relu", "tanh", "gelu")
_TWO_INPUTS = ("add", "mul", "div", "pow")
_ROW_KINDS = {"softmax": KernelKind.SOFTMAX, "ln": KernelKind.LAYER_NORM}


def rows(folder: Path) -> Iterator[Group]:
    """Yield element-wise kernels, softmax and layer norm, forward."""
    lines = read(folder / "gpu_op_times" / "vector.csv")
    for (device, op), chosen in grouped(
        lines, lambda line: (line["device"], "" if line["op"] in _SIMPLE else line["op"])
    ):
        rows, width = columns(chosen, "rows width")
        tensors = np.array([3 if line["op"] in _TWO_INPUTS else 2 for line in chosen])
        kind = _ROW_KINDS.get(op, KernelKind.ELEMENTWISE)
        yield Group(
            kind.value,
            name_of(device),
            "NeuSight",
            np.array([4 * tensors * rows * width, width]),
            0 * rows,
            4 * tensors * rows * width,
            columns(chosen, "latency_ms")[0] / 1e3,
            partial(predict_rows, kind),
            is_alone=True,
        )


def predict_rows(kind: KernelKind, card: Card, rules: Rules, sizes: Any) -> Any:
    moved_bytes, width = sizes
    return row_seconds(kind, moved_bytes, width, rates_of(card, rules.sheet), rules.rows)


def all_groups(folder: Path) -> list[Group]:
    """Return everything that was measured."""
    return [*products(folder), *general_products(folder), *rows(folder)]
