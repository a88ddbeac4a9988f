"""Derive what each gpu contract must reach on a card from runs of the suite, and write it into limits.toml.

    pytest --perf tests/perf -m "gpu and contract" --perf-without-figures --perf-json=run.json
    python -m scripts.derive_limits run.json [more.json …]

A run on an emulated card (`--perf-device=emulated:h100`) gives predicted figures, one on a real card measured
ones, with a margin each (--help). A row replaces the same card's; every row says where it comes from.
"""

import argparse
import json
import math
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.perf.figures import CardFigures, card_named
from tests.perf.table import ON, PATH

MARK = "# ---- Below: written by python -m scripts.derive_limits. Do not edit; derive anew. ----"


class Margins(NamedTuple):
    """Which share of a figure becomes its limit."""

    busy: float
    samples_per_s: float
    peak_memory: float


# A prediction is held loosely: the model misses kernels by up to a third, and hosts launch in 5 to 20 µs
# where it takes 10. A measured figure moves with clocks and with the card: those of one kind differ by 7 %.
PREDICTED = Margins(busy=0.6, samples_per_s=0.5, peak_memory=1.1)
MEASURED = Margins(busy=0.9, samples_per_s=0.85, peak_memory=1.05)


Row = dict[str, str | float]


class Refused(Exception):
    """A run cannot become limits; the message says why."""


class Run(NamedTuple):
    """One run of the suite on one card."""

    card: str  # as the model's table of cards has it
    source: str
    margins: Margins
    figures: Mapping[str, CardFigures]  # contract → the worst of its cases

    @classmethod
    def from_file(cls, path: Path) -> "Run":
        """Read a run's --perf-json, or say why nothing can be derived from it."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            environment, entries = document["machine_info"]["perfsuite"], document["benchmarks"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(f"{path}: no --perf-json of perfsuite: {error!r}") from None
        kind, name = environment["device_kind"], environment["device_name"]
        if kind.startswith("emulated-"):
            card, margins = kind.removeprefix("emulated-"), PREDICTED
            source = f"predicted by emulated:{card}, torch {environment['torch']}"
        elif kind == "cuda":
            card, margins = _card_name(name, environment["device_memory_bytes"]), MEASURED
            source = f"measured on {name}, driver {environment['driver']}, torch {environment['torch']}"
        else:
            raise Refused(f"{path}: this ran on {kind}; figures of a card come from cuda or emulated:<card>")
        return cls(card, source, margins, dict(_figures(path, entries, is_predicted=margins is PREDICTED)))

    def rows(self) -> dict[str, Row]:
        """Return test → its row for this card."""
        return {test: self._row(found) for test, found in self.figures.items()}

    def _row(self, found: CardFigures) -> Row:
        """Return the limits; a brief step that was predicted has no times."""
        row: Row = {"from": self.source}
        if found.busy is not None:
            row["min_busy"] = math.floor(100 * found.busy * self.margins.busy + 1e-9) / 100
        if found.samples_per_s is not None:
            row["min_samples_per_s"] = _rounded_down(found.samples_per_s * self.margins.samples_per_s)
        return {**row, "max_peak_memory": math.ceil(found.peak_memory * self.margins.peak_memory)}


def _card_name(title: str, memory_bytes: float) -> str:
    card = card_named(title, memory_bytes)
    if card is None:
        raise Refused(
            f"{title} is not in the table of cards; add it as [tool.perfsuite.gpus.NAME] in pyproject.toml"
        )
    return card.name


def _figures(
    path: Path, entries: Sequence[Mapping[str, Any]], *, is_predicted: bool
) -> Iterator[tuple[str, CardFigures]]:
    """Yield every contract with the worst figures of its cases."""
    cases: dict[str, dict[str, CardFigures]] = {}
    for entry in entries:
        test = re.sub(r" \(.*\)$", "", entry["fullname"])  # without the name of the reading
        function = re.sub(r"\[.*", "", test.rpartition("::")[2])
        taken = entry["extra_info"]["perfsuite"]
        if taken["failed"] or taken["invalid"]:
            raise Refused(f"{path}: {test} failed or does not count; only a green run becomes limits")
        metrics = {name: metric["value"] for name, metric in taken["metrics"].items()}
        values = {name: value for name, value in metrics.items() if value is not None}
        samples = values["samples_per_s"] * entry["stats"]["mean"]  # per step
        # The last reading of a test is that of its optimized variant.
        cases.setdefault(function, {})[test] = CardFigures.from_values(values, taken["reported"], samples)
    known = tomllib.loads(PATH.read_text(encoding="utf-8"))
    for function, found in cases.items():
        if function not in known:
            continue
        busy, speed, memory = zip(*found.values(), strict=True)
        missing = (
            []
            if is_predicted
            else [name for name, v in (("busy share", busy), ("speed", speed)) if None in v]
        )
        if missing:
            raise Refused(f"{path}: {function} has no {missing[0]}; was it measured on a card?")
        worst = (None if None in values else min(values) for values in (busy, speed))
        yield function, CardFigures(*worst, max(memory))
    if not set(cases) & set(known):
        raise Refused(
            f'{path}: no contract of the suite is in it; run pytest --perf tests/perf -m "gpu and contract"'
        )


def _rounded_down(value: float) -> float:
    """Keep three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.floor(value / unit) * unit


def written(text: str, runs: Sequence[Run]) -> str:
    """Return the table with the rows of these runs in place of the same cards' old ones."""
    kept = text.partition(MARK)[0].rstrip()
    rows = {test: kinds[ON] for test, kinds in tomllib.loads(text).items() if ON in kinds}
    for run in runs:
        for test, row in run.rows().items():
            rows.setdefault(test, {})[run.card] = row
    lines = [
        kept,
        "",
        MARK,
        f"# Shares of what was predicted: {_shares(PREDICTED)}; measured: {_shares(MEASURED)}.",
    ]
    for test in sorted(rows):
        lines += [
            "",
            f"[{test}.{ON}]",
            *(f"{card} = {_inline(row)}" for card, row in sorted(rows[test].items())),
        ]
    return "\n".join(lines) + "\n"


def _inline(row: Row) -> str:
    values = (f'{name} = "{v}"' if isinstance(v, str) else f"{name} = {v:.10g}" for name, v in row.items())
    return f"{{ {', '.join(values)} }}"


def _shares(margins: Margins) -> str:
    return ", ".join(f"{name} × {share:g}" for name, share in margins._asdict().items())


def main() -> None:
    """Derive limits from the runs given and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="--perf-json of the gpu suite")
    parser.epilog = f"predicted: {_shares(PREDICTED)}; measured: {_shares(MEASURED)}"
    try:
        runs = [Run.from_file(path) for path in parser.parse_args().runs]
    except Refused as error:
        sys.exit(str(error))
    PATH.write_text(written(PATH.read_text(encoding="utf-8"), runs), encoding="utf-8")
    for run in runs:
        print(f"{PATH.name}: {len(run.figures)} contracts on {run.card}, {run.source}")


if __name__ == "__main__":
    main()
