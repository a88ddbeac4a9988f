"""The documents' claims: read, held against what a scenario found, and laid out as a page."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsuite import Unit, show

FOLDER = Path(__file__).with_name("documents")
_LOWER_IS_BETTER = ("step_seconds", "epoch_seconds", "transfer_seconds", "peak_memory", "parameters", "swing")
UNITS = {
    "utilization": Unit.FRACTION,
    "samples_per_s": Unit.PER_SECOND,
    "peak_memory": Unit.BYTES,
    "epoch_seconds": Unit.SECONDS,
    "step_seconds": Unit.SECONDS,
    "transfer_seconds": Unit.SECONDS,
    "data_wait": Unit.FRACTION,
    "swing": Unit.FRACTION,
    "period": Unit.SECONDS,
    "parameters": Unit.COUNT,
}
LABELS = {
    "utilization": "utilization",
    "samples_per_s": "samples/s",
    "peak_memory": "peak memory",
    "epoch_seconds": "epoch",
    "step_seconds": "step",
    "transfer_seconds": "transfer of a batch",
    "data_wait": "waiting for data",
    "swing": "utilization swing",
    "period": "period",
    "parameters": "parameters",
}
Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class Claim:
    """One sentence of a document, as bounds on a figure."""

    text: str
    of: str  # before, after, gain, alone
    figure: str
    low: float | None = None
    high: float | None = None
    change: tuple[str, ...] = ()
    needs: str = ""  # why it cannot be told without a card


@dataclass(frozen=True)
class Document:
    """One of the five: the shape it is run at, and what it claims."""

    name: str
    title: str
    note: str
    detectors: int
    features: int
    rows: int
    window_ms: float
    claims: tuple[Claim, ...]

    def config(self, side: str) -> Path:
        """Return the configuration before or after."""
        return FOLDER / f"{self.name}-{side}.yaml"


@dataclass(frozen=True)
class Finding:
    """A claim beside what was found."""

    claim: Claim
    found: str
    verdict: str  # holds, does not hold, cannot be told


def load() -> list[Document]:
    """Read all documents' claims."""
    tables = tomllib.loads((FOLDER / "claims.toml").read_text(encoding="utf-8"))
    return [_document(name, entry) for name, entry in tables.items()]


def _document(name: str, entry: dict[str, Any]) -> Document:
    claims = tuple(Claim(**{**c, "change": tuple(c.get("change", ()))}) for c in entry["claims"])
    return Document(name, entry["title"], entry["note"], **entry["shape"], claims=claims)


def judge(claim: Claim, before: Figures, after: Figures, alone: Figures | None) -> Finding:
    """Hold one claim against the figures of both sides, or of «before» with one change."""
    if claim.needs:
        return Finding(claim, "–", f"cannot be told: {claim.needs}")
    if claim.of in ("before", "after"):
        value = (before if claim.of == "before" else after)[claim.figure]
        shown = show(value, UNITS[claim.figure])
        if value is None and claim.figure == "period":
            value, shown = 0.0, "none"
    else:
        changed = after if claim.of == "gain" else alone
        assert changed is not None
        value = _gain(claim.figure, before[claim.figure], changed[claim.figure])
        shown = show(value, Unit.RATIO)
    if value is None:
        return Finding(claim, "–", "cannot be told: the window is too short for it")
    holds = (claim.low is None or value >= claim.low) and (claim.high is None or value <= claim.high)
    return Finding(claim, shown, "holds" if holds else "does not hold")


def _gain(figure: str, before: float | None, after: float | None) -> float | None:
    """Return how many times better a figure got."""
    if before is None or after is None:
        return None
    top, bottom = (before, after) if figure in _LOWER_IS_BETTER else (after, before)
    return top / bottom if bottom else None


def page(sections: Iterable[Iterable[str]], how: str) -> str:
    """Return docs/claims.md."""
    lines = [
        "# What the five documents claim, and what holds",
        "",
        f"Made by `make claims`; {how}.",
        "The Social-xLSTM stands in for the documents' models, at their shapes. What one process needs to",
        "load a window is stated in `tests/perf/documents/claims.toml`, where the claims are, beside the",
        "configurations. «Holds»: at this shape, on this card, the figure is at least as good as claimed.",
        "A document's own data and card cannot be repeated here; shares and ratios can be argued with.",
    ]
    for section in sections:
        lines += ["", *section]
    return "\n".join(lines) + "\n"


def section(
    document: Document, before: Figures, after: Figures, findings: Sequence[Finding]
) -> Iterator[str]:
    """Yield one document's part of the page."""
    yield f"## {document.name}: {document.title}"
    yield ""
    yield (
        f"{document.detectors} detectors × {document.features} features, {document.rows:,} rows, "
        f"{document.window_ms:g} ms to load a window. {document.note}"
    )
    yield ""
    yield "| | before | after |"
    yield "|---|---|---|"
    for name, label in LABELS.items():
        cells = [_cell(name, side[name]) for side in (before, after)]
        yield f"| {label} | {cells[0]} | {cells[1]} |"
    yield ""
    yield "| claim | found | |"
    yield "|---|---|---|"
    for finding in findings:
        what = {"alone": " (alone)", "gain": " (all together)"}.get(finding.claim.of, "")
        yield f"| {finding.claim.text}{what} | {finding.found} | {finding.verdict} |"


def _cell(name: str, value: float | None) -> str:
    return "none" if value is None and name == "period" else show(value, UNITS[name])
