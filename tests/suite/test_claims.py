"""Claims are judged by their bounds, and the page carries every one of them."""

from pathlib import Path

import pytest

from social_xlstm import config_file
from tests.perf import claims
from tests.perf.claims import Claim

PAGE = Path(__file__).parents[2] / "docs/claims.md"
BEFORE = {"utilization": 0.30, "epoch_seconds": 30.0, "samples_per_s": 100.0, "period": 9.0}
AFTER = {"utilization": 0.80, "epoch_seconds": 10.0, "samples_per_s": 300.0, "period": None}
ALONE = {"utilization": 0.33, "epoch_seconds": 25.0, "samples_per_s": 120.0, "period": None}


@pytest.mark.parametrize(
    ("claim", "found", "verdict"),
    [
        (Claim("", "before", "utilization", high=0.30), "30.0 %", "holds"),
        (Claim("", "before", "utilization", high=0.29), "30.0 %", "does not hold"),
        (Claim("", "after", "utilization", low=0.80), "80.0 %", "holds"),
        (Claim("", "after", "utilization", low=0.81), "80.0 %", "does not hold"),
        (Claim("", "gain", "epoch_seconds", low=3), "3.00×", "holds"),
        (Claim("", "gain", "samples_per_s", low=3.1), "3.00×", "does not hold"),
        (Claim("", "alone", "samples_per_s", low=1.2), "1.20×", "holds"),
        (Claim("", "alone", "samples_per_s", low=1.3), "1.20×", "does not hold"),
        (Claim("", "after", "period", high=2), "none", "holds"),
        (Claim("", "before", "period", low=8, high=11), "9 s", "holds"),
        (Claim("", "gain", "period", low=1), "–", "cannot be told: the window is too short for it"),
        (Claim("", "alone", "samples_per_s", low=1, needs="a card"), "–", "cannot be told: a card"),
    ],
)
def test_a_claim_is_held_against_the_side_it_is_about(claim, found, verdict):
    """A figure within the bounds holds, bounds included; a gain counts in the direction that is better."""
    finding = claims.judge(claim, BEFORE, AFTER, ALONE)
    assert (found, verdict) == (finding.found, finding.verdict)


@pytest.mark.parametrize("document", claims.load(), ids=lambda document: document.name)
def test_configurations_and_changes_of_a_document_can_be_read(document):
    """Before, after, and before with each single change."""
    for side in ("before", "after"):
        config_file.load(document.config(side))
    for claim in document.claims:
        config_file.load(document.config("before"), claim.change)
        assert claim.figure in claims.UNITS
        assert claim.low is not None or claim.high is not None


def test_the_page_has_every_document_and_every_claim():
    """docs/claims.md was made from the claims as they are; refresh it with `make claims`."""
    page = PAGE.read_text(encoding="utf-8")
    for document in claims.load():
        assert f"## {document.name}: {document.title}\n" in page
        assert document.note in page
        for claim in document.claims:
            what = {"alone": " (alone)", "gain": " (all together)"}.get(claim.of, "")
            assert f"| {claim.text}{what} | " in page
    assert "modelled" in page


@pytest.mark.parametrize(
    ("side", "missed"), [("before", ["mixed precision", "loader workers", "pinned memory"]), ("after", [])]
)
def test_the_checklist_tells_the_stock_training_before_from_after(training_checklist, side, missed):
    """Forty workers, full precision and pageable memory are missed; the advised settings are not."""
    (document,) = [document for document in claims.load() if document.name == "003"]
    items = training_checklist(config_file.load(document.config(side)), "cuda:0").before()
    assert missed == [item.name for item in items if not item.is_met]
