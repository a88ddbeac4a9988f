"""How far the modelled kernel times are from measured ones: `python -m benchmarks.modelled_gpu DIRECTORY`.

DIRECTORY holds matmul.csv and vector.csv: op, device, sizes, latency_ms (NeuSight's measurements, MIT).
"""

import csv
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from perfsuite.devices import Kernel, KernelKind
from perfsuite.devices.model import (
    Card,
    Row,
    errors,
    fit_corrections,
    fit_rules,
    load_cards,
    seconds,
    sheet_seconds,
)

GROUPS = {
    "linear": ("linear",),
    "bmm": ("bmm",),
    "element-wise": ("add", "addu", "mul", "mulu", "div", "divu", "pow", "powu", "relu", "tanh", "gelu"),
    "softmax": ("softmax",),
    "layer norm": ("ln",),
}
KINDS = {
    "softmax": KernelKind.SOFTMAX,
    "ln": KernelKind.LAYER_NORM,
    "linear": KernelKind.LINEAR,
    "bmm": KernelKind.BMM,
}


def product(row: dict[str, str]) -> Row:
    b, m, n, k = (int(row[name]) for name in "bmnk")
    kernel = Kernel(
        row["op"],
        KINDS[row["op"]],
        2.0 * b * m * n * k,
        4 * b * (m * k + k * n),
        4 * b * m * n,
        "float32",
        1,
        (b, m, n, k),
    )
    return Row(kernel, float(row["latency_ms"]) / 1e3)


def vector(row: dict[str, str]) -> Row:
    rows, width = int(row["rows"]), int(row["width"])
    inputs = 2 if row["op"] in ("add", "mul", "div", "pow") else 1
    kind = KINDS.get(row["op"], KernelKind.ELEMENTWISE)
    problem = (1, rows, width, 0) if kind is not KernelKind.ELEMENTWISE else (1, 0, 0, 0)
    size = 4 * rows * width
    return Row(
        Kernel(row["op"], kind, rows * width, inputs * size, size, "float32", 1, problem),
        float(row["latency_ms"]) / 1e3,
    )


def load(folder: Path) -> dict[str, list[Row]]:
    """Return each measured card's rows, by the card's name in the table."""
    names = {card.title: card.name for card in load_cards().values()}
    rows: dict[str, list[Row]] = {}
    for file, read in (("matmul.csv", product), ("vector.csv", vector)):
        with (folder / file).open(newline="") as text:
            for line in csv.DictReader(text):
                rows.setdefault(names[line["device"]], []).append(read(line))
    return rows


def median_errors(rows: Sequence[Row], predicted: Sequence[float]) -> dict[str, list[float]]:
    found = errors(rows, predicted)
    return {
        group: [error for row, error in zip(rows, found, strict=True) if row.kernel.op in ops]
        for group, ops in GROUPS.items()
    }


def from_sheet(name: str, cards: dict[str, Card], rows: dict[str, list[Row]]) -> dict[str, list[float]]:
    """Predict a card from rules fitted on the other cards only."""
    rules = fit_rules([cards[other] for other in rows if other != name], rows)
    return median_errors(rows[name], [sheet_seconds(row.kernel, cards[name], rules) for row in rows[name]])


def calibrated(
    card: Card, rows: Sequence[Row], cards: dict[str, Card], all_rows: dict[str, list[Row]], seed: int
) -> dict[str, list[float]]:
    """Predict nine tenths of a card's rows from a fit on one tenth of each operator's."""
    chance = random.Random(seed)
    train: list[Row] = []
    test: list[Row] = []
    for op in sorted({row.kernel.op for row in rows}):
        chosen = [row for row in rows if row.kernel.op == op]
        chance.shuffle(chosen)
        cut = max(len(chosen) // 10, 1)
        train, test = train + chosen[:cut], test + chosen[cut:]
    rules = fit_rules([cards[other] for other in all_rows if other != card.name], all_rows)
    fitted = fit_corrections(card, train, rules)
    return median_errors(test, [seconds(row.kernel, fitted, rules) for row in test])


def main(folder: Path) -> None:
    cards, rows = load_cards(), load(folder)
    pooled: dict[str, dict[str, list[float]]] = {"sheet": {}, "calibrated": {}}
    print("| card | way |", " | ".join(GROUPS), "|")
    for name in rows:
        for way in ("sheet", "calibrated"):
            found = (
                from_sheet(name, cards, rows)
                if way == "sheet"
                else calibrated(cards[name], rows[name], cards, rows, seed=0)
            )
            for group, values in found.items():
                pooled[way].setdefault(group, []).extend(values)
            print(
                f"| {name} | {way} |",
                " | ".join(f"{100 * statistics.median(v):.1f} %" for v in found.values()),
                "|",
            )
    for way, groups in pooled.items():
        print(
            f"| all | {way} |",
            " | ".join(f"{100 * statistics.median(v):.1f} %" for v in groups.values()),
            "|",
        )
    print("rules fitted on all cards:", fit_rules([cards[name] for name in rows], rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
