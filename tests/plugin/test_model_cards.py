"""--perf-device=model:4xCARD: multi_gpu tests run without a GPU, and everything says that it is modelled."""

import json

import pytest
import torch._dynamo  # noqa: F401  here, so that runs in this process find it: torch must not be loaded twice

TRAINING = """
import pytest
import torch
from torch import nn


@pytest.mark.multi_gpu({needed})
@pytest.mark.perf
def test_it(perf):
    model = nn.Linear(256, 256).to(perf.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    features = torch.ones(16, 256, device=perf.device)

    def step():
        model(features).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    reading = perf(step, samples_per_step=16)
    print(*reading.notes)
"""


@pytest.fixture
def run(pytester):
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider -p no:hypothesispytest")

    def run(device, *arguments, needed=2):
        pytester.makepyfile(test_it=TRAINING.format(needed=needed))
        return pytester.runpytest_inprocess(f"--perf-device=model:{device}", *arguments)

    return run


def test_a_multi_gpu_test_runs_on_modelled_cards(run, pytester):
    """Header, note, table, JSON and baseline; and the next run is compared with it."""
    ran = run("2xa10", "--save-baseline", "--perf-json=out.json", "-s")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        [
            "perfsuite: model:2xa10@pcie (2 NVIDIA A10 over PCIe modelled), clock: modelled*"
            "key: model-2xa10-pcie_2-nvidia-a10-over-pcie-modelled_*",
            "*modelled: 2 NVIDIA A10 over PCIe, gradients of 257 KiB in 1 bucket*",
            "*modelled*saved*",
        ]
    )
    (entry,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    record = entry["extra_info"]["perfsuite"]
    assert record["modelled"] is True
    assert 256 * 257 * 4 == record["reported"]["modelled_collective_bytes"]
    assert 0 < record["reported"]["modelled_scaling_efficiency"] < 1
    assert "collectives" in record["shares"]
    assert 1 == len(list(pytester.path.glob("baselines/model-2xa10-pcie_*/**/*.json")))
    run("2xa10@pcie", "--perf", "--perf-strict").assert_outcomes(passed=1)
    run("4xa10", "--perf", "--perf-strict").assert_outcomes(failed=1)


def test_too_few_cards_are_skipped_with_their_number(run):
    """As on a machine with that many."""
    ran = run("2xa10", "--perf", "-rs", needed=4)
    ran.assert_outcomes(skipped=1)
    ran.stdout.fnmatch_lines(["SKIPPED*needs 4 accelerators, there are 2"])
    run("4xa10", "--perf", needed=4).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("4xa11", "*unknown card 'a11'; known: *a10*"),
        ("99xa10", "*99 cards in model:99xa10 cannot be modelled; known: 1 to 16"),
        ("2xa10@wifi", "*unknown link 'wifi' in model:2xa10@wifi; known: nvlink, pcie"),
        ("2xa10@nvlink", "*NVIDIA A10 has no NVLink; cards that have it: *h100*"),
    ],
)
def test_what_is_unknown_is_an_error_before_the_run(run, name, expected):
    """With the known ones."""
    ran = run(name, "--perf")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines([expected])
