"""A data-parallel step: buckets leave while the backward pass runs, the optimizer waits for the last."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from perfsuite.devices.code_lines import UNKNOWN
from perfsuite.devices.kernels import (
    Gradient,
    HostWork,
    Kernel,
    KernelKind,
    Launch,
    OptimizerMark,
    Reduce,
    Sync,
)
from perfsuite.devices.model import what_if as replay
from perfsuite.devices.model.cards import Card, Link, Ring, find_card, find_cards
from perfsuite.devices.model.data_parallel import exchange, seconds_in_all
from perfsuite.devices.model.device import ModelDevice
from perfsuite.devices.model.timeline import CAUSES, Timeline
from perfsuite.devices.model.what_if import what_if
from tests.modelled import model_loop, model_step

ROOT = Path(__file__).parents[4]
MIB = 2**20
# A byte a second and a host that needs no time: the figures below are whole numbers.
CARD = Card(
    "card", "Card", 1.0, 1.0, 1, 1e9, "a test",
    dispatch_seconds=0.0, launch_seconds=0.0, sync_seconds=0.0, kernel_seconds=0.0, bandwidth_share=1.0,
)  # fmt: skip
RING = Ring(2, Link("pcie", 2.0 * MIB, 0.5, 0.5))  # a second for a MiB, and one for the two hops
BEGIN, END = OptimizerMark(True), OptimizerMark(False)


def kernel(seconds):
    return Launch(Kernel("op", KernelKind.ELEMENTWISE, 0.0, seconds, 0, "float32"), UNKNOWN)


def busy_host(seconds):
    return HostWork("op", int(8e9 * seconds), UNKNOWN)


def played(*steps, ring=RING):
    timeline = Timeline(CARD)
    for events in exchange(steps, ring).steps:
        timeline.play(events)
    return timeline.result()


def sent(*steps):
    return [
        [event.size_bytes for event in events if isinstance(event, Reduce)]
        for events in exchange(steps, RING).steps
    ]


def two_buckets(between):
    first, second = Gradient(0, MIB), Gradient(1, 4 * MIB)
    return [kernel(10), kernel(3), first, *between, second, BEGIN, kernel(2), END]


@pytest.mark.parametrize(
    ("events", "collective", "exposed", "end"),
    [
        # One bucket of 2 s after the last kernel of the backward pass: nothing hides it.
        ([kernel(10), Gradient(0, MIB), BEGIN, kernel(2), END], 2, 2, 14),
        # 13–15 hidden by the kernel that runs until 17, then 5 s exposed.
        (two_buckets([kernel(4)]), 7, 5, 24),
        # The second is ready at 14 and leaves when the first is done at 15.
        (two_buckets([kernel(1)]), 7, 6, 22),
        # The host returns only at 20; the bucket arrived at 12.
        ([kernel(10), Gradient(0, MIB), busy_host(20), BEGIN, kernel(2), END], 2, 0, 22),
        # The host returns at 11, a second before the bucket arrives.
        ([kernel(10), Gradient(0, MIB), busy_host(11), BEGIN, kernel(2), END], 2, 1, 14),
        # Nothing after the backward pass: the step ends when the bucket arrives.
        ([kernel(10), Gradient(0, MIB)], 2, 2, 12),
        # A sync after the backward pass waits for it, too.
        ([kernel(10), Gradient(0, MIB), Sync("item", UNKNOWN), busy_host(1), kernel(2)], 2, 2, 15),
        # No gradient, no collective.
        ([kernel(10), BEGIN, kernel(2), END], 0, 0, 12),
    ],
)
def test_a_bucket_leaves_when_it_is_full_and_the_optimizer_waits_for_the_last(
    events, collective, exposed, end
):
    """Computed by hand: when each bucket starts, what hides it, and when the step ends."""
    result = played(events)
    assert collective == pytest.approx(result.collective_seconds)
    assert exposed == pytest.approx(result.exposed_seconds, abs=1e-9)
    assert end == pytest.approx(result.seconds)


def test_the_figures_of_two_buckets():
    """7 s on the link, 2 of them hidden; 24 s per step instead of 19."""
    step = two_buckets([kernel(4)])
    shared = exchange([step], RING)
    alone, together = (seconds_in_all(steps, CARD, 1) for steps in ([step], shared.steps))
    assert {
        "modelled_collective_seconds": 7,
        "modelled_collective_bytes": 5 * MIB,
        "modelled_collective_hidden_share": 2 / 7,
        "modelled_scaling_efficiency": 19 / 24,
    } == pytest.approx(shared.reported(played(step), alone, together))
    assert ["modelled: 2 Card over PCIe, gradients of 5 MiB in 2 buckets"] == shared.notes(CARD)


def test_the_gap_is_the_collectives():
    """And the causes of a single card are unchanged."""
    assert 5 == pytest.approx(played(two_buckets([kernel(4)])).gaps["collectives"])
    assert set(CAUSES) == set(played([kernel(1)]).gaps)


def test_the_next_step_waits_for_a_bucket_that_is_under_way():
    """As the stream does at the end of the backward pass."""
    step = [kernel(10), Gradient(0, MIB)]
    assert (12, 24) == pytest.approx(played(step, step).step_ends)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30 * MIB)), min_size=1, max_size=12), st.data())
def test_neither_more_bytes_nor_a_slower_link_are_faster(backward, data):
    """Whatever the order of kernels and gradients.

    More bytes take the link longer; the step may yet end sooner, if a bucket is full at an earlier gradient.
    """
    grown = data.draw(st.integers(0, len(backward) - 1))

    def run(extra=0, ring=RING):
        events = []
        for number, (took, size) in enumerate(backward):
            events += [kernel(took), Gradient(number, size + (extra if number == grown else 0))]
        return played([*events, BEGIN, kernel(2), END], ring=ring)

    less, more = run(), run(extra=7 * MIB)
    assert less.seconds <= run(ring=Ring(2, Link("pcie", 1.0 * MIB, 0.5, 0.5))).seconds
    assert less.collective_seconds <= more.collective_seconds + 1e-9
    assert sum(took for took, _ in backward) + 2 <= less.seconds
    assert 0 <= less.exposed_seconds <= less.collective_seconds + 1e-9


A, B = Gradient(0, 10), Gradient(1, 20)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([[A, B, BEGIN, END]], [[30]]),
        ([[A, B, A, B, BEGIN, END]], [[30]]),  # two backward passes before the optimizer
        ([[A, B], [A, B, BEGIN, END]], [[], [30]]),  # a step each
        ([[A, B, BEGIN, END], [A, B]], [[30], []]),  # the first step follows the last again
        ([[A, BEGIN, END, B, BEGIN, END]], [[10, 20]]),  # an optimizer each
        ([[A, B, A, BEGIN, END]], [[20, 10]]),  # a gradient that is not added to again is sent
        ([[A, B, A, B]], [[30, 30]]),  # without an optimizer, accumulation is unknown
        ([[kernel(1)]], [[]]),
    ],
)
def test_accumulated_gradients_are_sent_before_the_optimizers_step_only(steps, expected):
    """Every gradient once, with the pass that adds to it last."""
    assert expected == sent(*steps)


def test_the_share_of_the_exchange_is_what_a_step_would_gain_without_it():
    """Distinguished from launches."""
    steps = exchange([two_buckets([kernel(4)])] * 3, RING).steps
    shares = what_if(steps, CARD).shares
    assert 5 / 24 == pytest.approx(shares["collectives"])
    assert 1 == pytest.approx(sum(shares.values()))
    assert "collectives" not in what_if([[kernel(4)]], CARD).shares


def test_a_huge_steps_exchange_is_its_gaps(monkeypatch):
    """It is not played again; the idle time has its cause."""
    monkeypatch.setattr(replay, "_HUGE_EVENTS", 1)
    step = two_buckets([kernel(4)])
    shares = what_if(exchange([step], RING).steps, CARD, played(step)).shares
    assert 5 / 24 == pytest.approx(shares["collectives"])


def opened(name):
    card, ring = find_cards(name)
    return ModelDevice(card, ROOT, ring)


def reading_on(name, make=None, accumulate=1, step_optimizer=True):
    device = opened(name)
    device.begin_test()
    try:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to("cpu:0")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        features = torch.ones(8, 512, device="cpu:0")

        def step():
            for _ in range(accumulate):
                model(features).sum().backward()
            if step_optimizer:
                optimizer.step()
            optimizer.zero_grad()

        return model_step(make(model, features) if make else step, device, 8)
    finally:
        device.end_test()


BYTES = 2 * (512 * 512 + 512) * 4  # 1 MiB is full with the second weight: two buckets
SECOND = (512 * 512 + 512) * 4


def test_a_training_on_four_cards_reports_what_its_gradients_cost():
    """From torch's backward pass: the last layer's weight and bias fill the first bucket."""
    reading = reading_on("4xa10")
    ring = find_cards("4xa10")[1]
    assert "model:4xa10@pcie" == reading.device
    assert BYTES == reading.reported["modelled_collective_bytes"]
    assert 2 * ring.all_reduce_seconds(SECOND) == pytest.approx(
        reading.reported["modelled_collective_seconds"]
    )
    assert 0 <= reading.reported["modelled_collective_hidden_share"] <= 1
    assert 0 < reading.reported["modelled_scaling_efficiency"] < 1
    assert "modelled: 4 NVIDIA A10 over PCIe, gradients of 2 MiB in 2 buckets" in reading.notes
    alone = reading_on("a10")
    assert reading.reported["modelled_scaling_efficiency"] == pytest.approx(
        alone.wall_seconds / reading.wall_seconds
    )
    assert alone.counts == reading.counts


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 1)

    def forward(self, features):
        return self.head(self.cell(features)[0])


@pytest.fixture
def process_group():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (
            lambda: nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 4)),
            (2, 512),
        ),
        (lambda: nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(6)]), (2, 1536)),
        (Recurrent, (2, 5, 128)),
    ],
    ids=["small", "beyond 25 MiB", "recurrent"],
)
def test_the_buckets_are_those_of_torchs_own_ddp(process_group, make, shape):
    """Compared with a real DDP on the same model, after it has recorded the order of arrival."""
    ddp = DistributedDataParallel(make())
    for _ in range(3):
        ddp(torch.ones(shape)).sum().backward()
    expected = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    device = opened("2xa10")
    device.begin_test()
    try:
        model, features = make().to("cpu:0"), torch.ones(shape, device="cpu:0")
        window = device.start()
        model(features).sum().backward()
        window.mark()
        window.close()
    finally:
        device.end_test()
    (cut,) = sent(*window.steps)
    assert expected == ", ".join(map(str, cut))


def test_nvlink_is_faster_than_pcie():
    """The same card, with either link."""
    fast, slow = reading_on("4xh100"), reading_on("4xh100@pcie")
    assert fast.step_seconds < slow.step_seconds
    assert fast.reported["modelled_scaling_efficiency"] > slow.reported["modelled_scaling_efficiency"]


@pytest.mark.parametrize("name", ["a10", "1xa10"])
def test_one_card_is_what_it_was(name):
    """No hook, no figure, no note about a ring."""
    reading = reading_on(name)
    told = {"operators_without_rule", "h2d_copies", "d2h_copies", "modelled_step_error"}
    assert {f"modelled_{cause}_gap_share" for cause in CAUSES} | told == set(reading.reported)
    assert "model:a10" == reading.device
    assert not any("over" in note for note in reading.notes)
    facts = opened(name).facts()
    assert ("model-a10", "NVIDIA A10 modelled", 1) == (facts.kind, facts.name, opened(name).count())


def test_several_cards_have_their_own_key():
    """It contains their number and their link."""
    names = ("a10", "2xa10", "4xa10", "4xh100", "4xh100@pcie")
    kinds = [(opened(name).facts().kind, opened(name).facts().name) for name in names]
    assert ("model-4xh100-pcie", "4 NVIDIA H100 SXM5 80GB over PCIe modelled") == kinds[-1]
    assert len(names) == len(set(kinds))
    assert [1, 2, 4, 4, 4] == [opened(name).count() for name in names]


def test_accumulation_is_noted():
    """Three backward passes, one exchange; without an optimizer one exchange each, and a note says which."""
    reading = reading_on("4xa10", accumulate=3)
    assert BYTES == reading.reported["modelled_collective_bytes"]
    assert any("no_sync()" in note for note in reading.notes)
    reading = reading_on("4xa10", accumulate=3, step_optimizer=False)
    assert 3 * BYTES == reading.reported["modelled_collective_bytes"]
    assert any("after every backward pass" in note for note in reading.notes)


def test_a_step_without_gradients_exchanges_nothing():
    """Evaluation scales without cost."""
    reading = reading_on("4xa10", make=lambda model, features: torch.no_grad()(lambda: model(features)))
    assert 0 == reading.reported["modelled_collective_bytes"]
    assert 1 == reading.reported["modelled_scaling_efficiency"]
    assert "modelled_collective_hidden_share" not in reading.reported
    assert "modelled: 4 NVIDIA A10 over PCIe, no gradients and so no collective" in reading.notes


def test_a_step_that_moves_nothing_sends_its_gradients_too():
    """Every tensor counts as on the card, including the parameters."""
    device = opened("2xa10")
    device.begin_test()
    try:
        model, features = nn.Linear(64, 64), torch.ones(8, 64)
        reading = model_step(lambda: model(features).sum().backward(), device, 8)
    finally:
        device.end_test()
    assert 64 * 65 * 4 == reading.reported["modelled_collective_bytes"]


def test_a_loop_scales_by_its_steps():
    """A loader that is late changes neither the exchange nor the efficiency."""
    figures = []
    for batch_seconds in (0.0, 0.5):
        device = opened("2xa10")
        device.begin_test()
        try:
            model = nn.Linear(512, 512).to("cpu:0")
            loader = torch.utils.data.DataLoader(torch.ones(64, 512), batch_size=16)
            reading = model_loop(
                loader,
                lambda batch, model=model: model(batch.to("cpu:0")).sum().backward(),
                device,
                samples=None,
                batch_seconds=batch_seconds,
            )
        finally:
            device.end_test()
        figures.append(
            [reading.reported[f"modelled_{name}"] for name in ("collective_seconds", "scaling_efficiency")]
        )
    assert figures[0] == figures[1]
    assert 0 < figures[0][1] < 1


def test_frozen_parameters_and_those_of_the_host_are_not_sent():
    """Only parameters that get a gradient on the card are."""

    def make(model, features):
        model[0].requires_grad_(False)
        on_host = nn.Linear(4, 4)

        def step():
            model(features).sum().backward()
            on_host(torch.ones(1, 4)).sum().backward()

        return step

    reading = reading_on("2xa10", make=make)
    assert SECOND == reading.reported["modelled_collective_bytes"]


def test_the_hooks_are_gone_after_the_window():
    """Measuring leaves nothing behind on a test's parameters."""
    left = []

    def make(model, features):
        left.extend(model.parameters())
        return lambda: model(features).sum().backward()

    reading_on("2xa10", make=make)
    assert [] == [hooks for p in left if (hooks := getattr(p, "_post_accumulate_grad_hooks", None))]


def test_the_card_of_the_ring_is_the_one_of_its_sheet():
    """A ring changes no figure of the card."""
    assert find_card("a10") == find_cards("4xa10")[0]
