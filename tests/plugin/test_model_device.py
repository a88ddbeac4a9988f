"""--perf-device=model:CARD: gpu tests run anywhere, counts are gated exactly, messages name the line."""

import json
import subprocess
import sys

import pytest
import torch._dynamo  # noqa: F401  here, so that runs in this process find it: torch must not be loaded twice

TRAINING = """
import pytest
import torch
from torch import nn


def make(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    return model, torch.optim.Adam(model.parameters(){options})


def train_step(model, optimizer, features, targets, device):
    features = features.to(device, non_blocking=True)
    {moved}
    hidden = model[1](model[0](features))
    {extra}
    loss = nn.functional.mse_loss(model[2](hidden), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {logged}
    return loss.detach()


@pytest.mark.gpu
@pytest.mark.perf({marker})
def test_it(perf):
    model, optimizer = make(perf.device)
    features, targets = torch.ones(256, 32), torch.ones(256, 1, device=perf.device)
    perf(lambda: train_step(model, optimizer, features, targets, perf.device), samples_per_step=256)
"""


@pytest.fixture
def training(pytester):
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider -p no:hypothesispytest")

    def write(options="", moved="pass", extra="pass", logged="pass", marker=""):
        pytester.makepyfile(
            test_it=TRAINING.format(options=options, moved=moved, extra=extra, logged=logged, marker=marker)
        )

    def run(*arguments):
        return pytester.runpytest_inprocess("--perf-device=model:a10", *arguments)

    write()
    write.run = run
    write.path = pytester.path
    return write


def test_a_gpu_test_runs_without_a_gpu_and_everything_says_modelled(training):
    """Header, table, JSON and key: a prediction is never mistaken for a measurement."""
    ran = training.run("--save-baseline", "--perf-json=out.json", "-m", "gpu")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        [
            "perfsuite: model:a10 (NVIDIA A10 modelled), clock: modelled*key: model-a10_*",
            "*256*modelled*saved*",
        ]
    )
    (entry,) = json.loads((training.path / "out.json").read_text())["benchmarks"]
    record = entry["extra_info"]["perfsuite"]
    assert record["modelled"] is True
    assert record["metrics"]["kernels"]["value"] > 10
    assert any("loss.backward()" in place for place in record["places"]["kernels"])
    (stored,) = training.path.glob("baselines/model-a10_*/**/*.json")
    assert "places" in json.loads(stored.read_text())["readings"]["step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "figure", "line"),
    [
        ({"logged": "loss.item()"}, "modelled host syncs per step 1 is*above the baseline 0*", "loss.item()"),
        (
            {"moved": "features = features.cpu().to(device)"},
            "modelled bytes to the device per step 64 KiB is*above the baseline 32 KiB*",
            "features = features.cpu().to(device)",
        ),
        ({"options": ", foreach=False"}, "modelled kernels per step*above the baseline*", "optimizer.step()"),
        (
            {"extra": "hidden = torch.cat([hidden, hidden])[:256]"},
            "modelled peak memory *above the baseline*",
            "hidden = torch.cat([[]hidden, hidden[]])*",
        ),
        (
            {"extra": "hidden = hidden + 0"},
            "modelled kernels per step*above the baseline*",
            "hidden = hidden + 0",
        ),
    ],
    ids=["item", "copy", "fusion", "activation", "kernel"],
)
def test_a_regression_fails_the_gate_and_names_its_line(training, change, figure, line):
    """A stray sync, an extra copy, a lost fusion, a doubled activation."""
    training.run("--save-baseline").assert_outcomes(passed=1)
    training.run("--perf").assert_outcomes(passed=1)
    training(**change)
    ran = training.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines([figure, f"*more (baseline *) at test_it.py:* in train_step: {line}"])
    if "memory" in figure:  # its lines stand under the whole, its kind below
        ran.stdout.fnmatch_lines([figure, "modelled memory of activations *above the baseline*"])


def test_a_declared_tolerance_lets_counts_grow(training):
    """count_tolerance of the marker; the default is none at all."""
    training.run("--save-baseline").assert_outcomes(passed=1)
    training(extra="hidden = hidden * 2", marker="count_tolerance=1, memory_tolerance=1")
    training.run("--perf").assert_outcomes(passed=1)


def test_markers_limit_counts_and_predictions(training):
    """Limits have the names of the metrics; the places with the largest counts are listed."""
    training(marker='max_kernels=10, max_syncs=0, min_utilization="99 %"')
    ran = training.run("--perf")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "modelled kernels per step * is above the 10 expected by the perf marker*",
            "  * at test_it.py:* in train_step: *",
            "modelled GPU utilization * is below the 99.0 % expected by the perf marker*",
        ]
    )


def test_a_predicted_time_is_not_compared_more_finely_than_the_model(training):
    """A tolerance of 1 % is one of 25 % here."""
    training.run("--save-baseline").assert_outcomes(passed=1)
    (stored,) = training.path.glob("baselines/**/*.json")
    document = json.loads(stored.read_text())
    metrics = document["readings"]["step"]["metrics"]
    metrics["step_time"]["value"] *= 0.85
    stored.write_text(json.dumps(document))
    training.run("--perf", "--perf-tolerance=1 %").assert_outcomes(passed=1)
    metrics["step_time"]["value"] *= 0.5
    stored.write_text(json.dumps(document))
    training.run("--perf", "--perf-tolerance=1 %").assert_outcomes(failed=1)


def test_an_unknown_card_is_an_error_before_the_run(training):
    """With the known ones."""
    ran = training.run("--perf", "--perf-device=model:a11")
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*unknown card 'a11'; known: *a10*"])


def test_the_skip_reason_names_the_option(training):
    """Without a GPU, it says what to do."""
    ran = training.run("--perf", "--perf-device=cpu", "-rs")
    ran.assert_outcomes(skipped=1)
    ran.stdout.fnmatch_lines(["SKIPPED*--perf-device=model:a10*"])


def test_calibrate_says_what_it_needs():
    """A CUDA card's measurements correct a sheet."""
    command = [sys.executable, "-m", "perfsuite", "calibrate", "mine", "--device=cuda"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 1 == ran.returncode
    assert "name the card's sheet with --sheet" in ran.stderr


def test_a_gpu_test_may_name_its_modelled_card(training, pytester):
    """If the marker names an accelerator, the session's CPU is no reason to skip."""
    training(marker='device="model:t4"')
    result = pytester.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=1)
    assert "modelled" in result.stdout.str()
    result = pytester.runpytest_inprocess("--perf", "--perf-device=cpu", "-rs")
    result.assert_outcomes(skipped=1)


def test_the_benchmark_fixture_is_skipped_where_there_is_no_clock_for_it(training):
    """The host's times would pass for the card's."""
    test = "import pytest\n@pytest.mark.perf\ndef test_it(benchmark):\n    benchmark(sum, [1])\n"
    (training.path / "test_it.py").write_text(test)
    ran = training.run("--perf", "-rs")
    ran.assert_outcomes(skipped=1)
    told = "SKIPPED*model:a10 has no clock for the benchmark fixture; measure with perf(step)"
    ran.stdout.fnmatch_lines([told])
