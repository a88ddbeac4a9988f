"""The checklist finds settings wherever a training keeps them, and misses what is missed."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from perfsuite.diagnose.checklist import Checklist, Wanted
from perfsuite.errors import ChecklistMissed
from tests.readings import make_reading

GOOD = {
    "precision": "bf16-mixed",
    "loader": {"num_workers": 8, "batch_size": 512, "pin_memory": True},
    "storage": "memmap",
}


def missed(items):
    return [item.name for item in items if not item.is_met]


def before(change=None, device="cuda:0", **wanted):
    config = {**GOOD, "loader": {**GOOD["loader"]}}
    for key, value in (change or {}).items():
        (config["loader"] if key in config["loader"] else config)[key] = value
    return Checklist(config, device, Wanted(**wanted)).before()


def reading(**figures):
    plain = {"utilization": 0.6, "peak_memory_bytes": 5e9, "samples_per_s": 100.0}
    return make_reading("loop", "loop", "cuda:0", 10, 3, 100, 1.0, (), **{**plain, **figures})


@pytest.mark.parametrize(
    ("change", "item"),
    [
        ({}, None),
        ({"precision": "32-true"}, "mixed precision"),
        ({"precision": None}, "mixed precision"),
        ({"precision": 16}, None),
        ({"precision": 32}, "mixed precision"),
        ({"precision": None, "bf16": False, "fp16": True}, None),
        ({"precision": None, "bf16": False, "fp16": False}, "mixed precision"),
        ({"precision": None, "use_amp": True}, None),
        ({"num_workers": 3}, "loader workers"),
        ({"num_workers": 4}, None),
        ({"num_workers": 12}, None),
        ({"num_workers": 13}, "loader workers"),
        ({"num_workers": "auto"}, None),
        ({"num_workers": True}, "loader workers"),
        ({"batch_size": 255}, "batch size"),
        ({"batch_size": 256}, None),
        ({"pin_memory": False}, "pinned memory"),
        ({"storage": "file"}, "data in memory"),
        ({"resident": True, "pin_memory": False, "num_workers": 0, "storage": "file"}, None),
    ],
)
def test_every_item_is_missed_at_its_bound_and_alone(change, item):
    """One setting beyond its bound misses one item; data on the device needs neither workers nor pinning."""
    assert ([item] if item else []) == missed(before(change))


def test_objects_that_hold_each_other_end_the_search():
    """A trainer knows its model, and the model its trainer."""
    trainer, model = SimpleNamespace(precision="bf16-mixed"), SimpleNamespace()
    trainer.model, model.trainer = model, trainer
    assert "batch size" in missed(Checklist(trainer, "cuda").before())


def test_a_host_need_not_be_full():
    """On a host the figure is shown and not required; on a card the same figure is too little."""
    little = reading(peak_memory_bytes=1e9)
    (of_card,) = [item for item in Checklist(GOOD, "cuda").during(little) if item.name == "peak memory"]
    assert not of_card.is_met
    on_host = Checklist(GOOD, "cpu").during(replace(little, device="cpu", is_accelerator=False))
    (of_host,) = [item for item in on_host if item.name == "peak memory"]
    assert of_host.is_met
    assert of_card.actual == of_host.actual


def test_without_a_gpu_the_item_says_what_to_do():
    """A CPU is not a GPU; a modelled card is one, and is marked as modelled."""
    (gpu,) = [item for item in before(device="cpu") if item.name == "GPU"]
    line = "[ ] GPU: cpu (expected: an accelerator); run it on a GPU, or count on a modelled one: "
    assert line in gpu.line()
    assert "model:a10 (modelled)" == before(device="model:a10")[-1].actual
    assert [] == missed(before(device="model:a10"))


@pytest.mark.parametrize(
    ("figures", "item"),
    [
        ({}, None),
        ({"utilization": 0.599}, "utilization"),
        ({"utilization": None}, "utilization"),
        ({"peak_memory_bytes": 4.9e9}, "peak memory"),
        ({"samples_per_s": 99.0}, "epoch"),
        ({"samples_per_s": None}, "epoch"),
        ({"notes": ("more than the 24 GB of the NVIDIA A10",)}, "fits into memory"),
    ],
)
def test_a_reading_answers_the_items_of_the_run(figures, item):
    """A figure that was not measured is missed, never met."""
    items = Checklist(GOOD, "cuda").during(reading(**figures), epoch_samples=2000)
    assert ([item] if item else []) == missed(items)


def test_modelled_figures_say_so():
    """No predicted figure passes for a measured one."""
    items = Checklist(GOOD, "model:a10").during(reading(modelled=True), epoch_samples=10)
    assert all("(modelled)" in item.actual for item in items[:3])


@dataclass(frozen=True)
class Loader:
    batch_size: int = 512
    num_workers: int = 8
    pin_memory: bool = True
    resident: bool = False


@dataclass(frozen=True)
class Config:
    amp: bool = True
    storage: str = "shared"
    loader: Loader = field(default_factory=Loader)


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        SimpleNamespace(
            bf16=True, dataloader_num_workers=8, per_device_train_batch_size=256, dataloader_pin_memory=True,
            cached=True,
        ),
        {"train": [], "model": {"amp": True}, "data": Config()},
    ],
    ids=["records", "an object of arguments", "mapping with a record"],
)  # fmt: skip
def test_settings_are_found_wherever_they_are(config):
    """Records, objects and mappings inside each other, under the names trainings use."""
    assert [] == missed(Checklist(config, "cuda").before())


def test_require_names_all_that_is_missed():
    """One failure with every missed item and its advice."""
    checklist = Checklist({"precision": "32-true"}, "cpu")
    with pytest.raises(ChecklistMissed, match="missed items of the training's checklist: 6\n") as caught:
        checklist.require(checklist.before())
    workers = "loader workers: not set (expected: 4 to 12, or auto); too few starve the training"
    assert workers in str(caught.value)
    checklist.require(())
