"""An existing Hugging Face training, measured by adding one callback."""

import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install '.[huggingface]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install '.[huggingface]'")

PROJECT = """
import pytest, torch
from transformers import Trainer, TrainingArguments
from perfsuite.frameworks.huggingface import PerfCallback


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, features, labels):
        output = self.layer(features)
        return {"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return {"features": torch.ones(8), "labels": torch.ones(1)}


@pytest.mark.perf
def test_train(perf, tmp_path):
    watch = PerfCallback(perf)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=100_000, per_device_train_batch_size=16,
        gradient_accumulation_steps=2, use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )
    trainer = Trainer(model=Model(), args=arguments, train_dataset=Data(), callbacks=[watch])
    trainer.train()
    assert watch.reading.samples == 32 * watch.reading.steps
    assert 0 < watch.reading.data_wait < 1
    assert trainer.state.global_step < 100_000
"""


@pytest.mark.slow
def test_train_is_measured_and_ends_when_it_is_known(pytester):
    """Samples of accumulated batches and the wait for data are counted, and the training stops early."""
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider\nperf_device = cpu")
    pytester.makepyfile(test_train=PROJECT)
    arguments = ["--perf", "--perf-min-time=0.2s", "--perf-max-time=1s", "-W", "ignore"]
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)
