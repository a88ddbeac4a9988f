"""The five documents, before and after, beside what they claim."""

import pytest

from tests.perf import claims
from tests.perf.closing import DEVICE_NAMES, SECTIONS, TOLD
from tests.perf.scenario import run

DOCUMENTS = claims.load()


@pytest.mark.scenario
@pytest.mark.perf(device="model:a10", count_tolerance="100 %", memory_tolerance="100 %")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_the_document_s_before_and_after(perf, document, request):
    """Both sides run at the document's shape; its claims are told with what was found, right or wrong."""
    before, after = (run(perf, document, side) for side in ("before", "after"))
    alone = {
        claim.change: run(perf, document, "before", claim.change, name=" ".join(claim.change))
        for claim in {claim.change: claim for claim in document.claims}.values()
        if claim.of == "alone" and not claim.needs
    }
    findings = [claims.judge(claim, before, after, alone.get(claim.change)) for claim in document.claims]
    section = list(claims.section(document, before, after, findings))
    request.config.stash[SECTIONS][document.name] = section
    request.config.stash[DEVICE_NAMES].append(perf.device_name)
    told = request.config.stash[TOLD]
    told += ["", *(line for line in section if line and not line.startswith("|---"))]
    assert len(document.claims) == len(findings)
    assert after["samples_per_s"] > before["samples_per_s"], "the document's advice as a whole lost speed"
