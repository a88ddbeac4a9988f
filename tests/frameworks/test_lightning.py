"""An existing Lightning training, measured by adding one callback."""

import pytest

pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install '.[lightning]'")

PROJECT = """
import logging, time, warnings
import pytest, torch
from torch.utils.data import DataLoader, TensorDataset
import lightning.pytorch as lightning
from perfsuite.frameworks.lightning import PerfCallback


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        features, targets = batch
        return torch.nn.functional.mse_loss(self.layer(features), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.perf({marker})
def test_fit(perf):
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    watch = PerfCallback(perf)
    trainer = lightning.Trainer(
        max_epochs={epochs}, max_steps={steps}, accelerator="cpu", callbacks=[watch], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Model(), DataLoader(data, batch_size=32))
    assert watch.reading.kind == "loop"
    assert watch.reading.samples == 32 * watch.reading.steps
    assert 0 < watch.reading.data_wait < 1
    assert trainer.global_step < 16 * {epochs}
"""


@pytest.fixture
def run(pytester):
    def run(marker="", epochs=10_000, steps=-1):
        pytester.makeini("[pytest]\naddopts = -p no:cacheprovider\nperf_device = cpu")
        pytester.makepyfile(test_fit=PROJECT.format(marker=marker, epochs=epochs, steps=steps))
        return pytester.runpytest_subprocess(
            "--perf", "--perf-min-time=0.2s", "--perf-max-time=1s", "-W", "ignore"
        )

    return run


@pytest.mark.slow
def test_fit_is_measured_and_ends_when_it_is_known(run):
    """Samples and the wait for the loader are counted, and the training stops early."""
    run().assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_limit_fails_the_test(run):
    """As with perf.loop."""
    ran = run("min_samples_per_s=1e12")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["samples/s * is below the * expected by the perf marker*"])


@pytest.mark.slow
def test_a_training_too_short_to_be_measured_says_so(run):
    """Rather than leaving no reading behind."""
    ran = run(steps=3)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["the training ended after 3 steps, while it was still warming up: give it more*"]
    )
