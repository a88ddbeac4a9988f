"""The gate on the project's train_step: a regression planted into its source fails and its line is named."""

from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  here, so that runs in this process find it: torch must not be loaded twice

# For the same reason: the runs below load the copied step anew, and nothing else.
import benchmarks.trainings  # noqa: F401
import social_xlstm.train.loop

STEP = Path(social_xlstm.train.loop.__file__).with_name("step.py")
TEST = """
import pytest
import torch
from step import Recipe, Sums, build_optimizer, train_step
from social_xlstm.config import ModelConfig, OptimizerConfig, PoolingConfig, XLSTMConfig
from social_xlstm.data.windows import Batch
from social_xlstm.model.social_xlstm import SocialXLSTM
from social_xlstm.train.precision import Precision


@pytest.mark.gpu
def test_it(perf):
    torch.manual_seed(0)
    xlstm = XLSTMConfig(embedding_dim=16, num_blocks=2, slstm_at=(1,), num_heads=2)
    sizes = dict(n_detectors=3, n_features=2, prediction_length=3)
    model = SocialXLSTM(ModelConfig(xlstm=xlstm), PoolingConfig(enabled=False), **sizes).to(perf.device)
    optimizer = build_optimizer(OptimizerConfig(), model.parameters())
    precision = Precision.from_name("32-true", perf.device)
    recipe = Recipe(model, optimizer, precision, Sums.zero(perf.device), clip=1.0)
    features, targets = torch.ones(4, 12, 3, 2), torch.ones(4, 3, 3, 2)
    batch = Batch(features, targets, targets > 0)
    perf(lambda: train_step(recipe, batch), samples_per_step=4)
"""


@pytest.fixture
def gate(pytester):
    """Write the real source with one text replaced, and run it on a modelled card."""
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider -p no:hypothesispytest\npythonpath = .")
    pytester.makepyfile(test_it=TEST)

    def run(*arguments, was="", becomes=""):
        text = STEP.read_text()
        assert not was or 1 == text.count(was), f"{STEP.name} no longer has {was!r}: plant elsewhere"
        (pytester.path / STEP.name).write_text(text.replace(was, becomes) if was else text)
        return pytester.runpytest_inprocess("--perf-device=model:a10", *arguments)

    run("--save-baseline").assert_outcomes(passed=1)
    return run


FETCHED = "batch = move_to_device(batch, recipe.precision.device, non_blocking=recipe.non_blocking)"
AGAIN = "batch = move_to_device(move_to_device(batch, 'cpu'), recipe.precision.device)"
TWICE = "prediction = recipe.model(torch.cat([batch.features] * 2))[: len(batch.features)]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "becomes", "figure", "place"),
    [
        (
            "    squared = squared.detach()\n",
            "    squared = squared.detach()\n    squared.item()\n",
            "modelled host syncs per step 1 is*above the baseline 0*",
            "in backward: squared.item()",
        ),
        (
            f"    {FETCHED}\n",
            f"    {FETCHED}\n    {AGAIN}\n",
            "modelled bytes to the device per step *above the baseline*",
            f"in backward: {AGAIN}",
        ),
        (
            f"    {FETCHED}\n",
            f"    {FETCHED}\n    batch.features.clone()\n",
            "modelled copies within the device per step *above the baseline*",
            "in backward: batch.features.clone()",
        ),
        (
            "fused=True)",
            "fused=False)",
            "modelled kernels per step *above the baseline*",
            "in apply_gradients: scaler.step(optimizer)",
        ),
        (
            "fused=True)",
            "foreach=False)",
            "modelled kernels per step *above the baseline*",
            "in apply_gradients: scaler.step(optimizer)",
        ),
        (
            "    torch._foreach_mul_(gradients, factor)\n",
            "    for gradient in gradients:\n        gradient.mul_(factor)\n",
            "modelled kernels per step *above the baseline*",
            "in apply_gradients: gradient.mul_(factor)",
        ),
        (
            "prediction = recipe.model(batch.features)",
            TWICE,
            "modelled peak memory *above the baseline*",
            f"in backward: {TWICE.replace('[', '[[]')}",
        ),
    ],
    ids=["item", "copy", "clone", "fused", "foreach", "foreach of gradients", "activation"],
)
def test_what_is_planted_into_the_real_step_is_named(gate, was, becomes, figure, place):
    """A stray sync, an extra copy, a lost fusion, a doubled activation: counts are exact limits."""
    ran = gate("--perf", was=was, becomes=becomes)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines([figure, f"*more (baseline *) at step.py:* {place}"])
    if "memory" in figure:  # its lines stand under the whole, its kind below
        ran.stdout.fnmatch_lines([figure, "modelled memory of activations *above the baseline*"])


def test_the_real_step_passes_its_own_gate(gate):
    """Unchanged code gives the same counts; a comment above shifts lines and changes nothing."""
    gate("--perf").assert_outcomes(passed=1)
    moved = gate("--perf", was="def train_step(", becomes="# A line more.\n\n\ndef train_step(")
    moved.assert_outcomes(passed=1)
