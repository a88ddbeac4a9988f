"""The modelled GPU handles torch's special cases as a card would: loss scalers, numbers in tensors, vmap."""

import torch
from torch import nn

from tests.modelled import model_step
from tests.unit.devices.model.test_device import CARD, counts, device, on_card  # noqa: F401  a fixture


def test_a_loss_scaler_with_a_fused_optimizer_reads_nothing_back(device):  # noqa: F811
    """Scale and overflow flag are passed to the optimizer as tensors that are already on the card."""
    model = nn.Linear(8, 8).to(CARD)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu")
    x = on_card(4, 8)

    def step():
        scaler.scale(model(x).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    found = counts(device, step)
    assert (0, 0) == (found["syncs"], found["d2h_bytes"])


def test_a_number_that_torch_puts_into_a_tensor_is_the_hosts(device):  # noqa: F811
    """`torch.where(mask, host, 1.0)` does not move the host's tensor to the card."""
    on_card(3)  # something is on the card
    host = torch.arange(3.0)
    torch.where(host > 1, host, 1.0)
    reading = model_step(lambda: on_card(3) + 1, device, 1)
    assert [] == [note for note in reading.notes if "used as if" in note]


def test_tensors_inside_vmap_know_where_they_are(device):  # noqa: F811
    """A batched tensor has no memory; the tensor it wraps has."""
    x = on_card(3, 4)
    devices = []

    def one(row):
        devices.append(row.device)
        return row.to(CARD) * 2

    assert 1 == counts(device, lambda: torch.vmap(one)(x))["kernels"]
    assert {torch.device(CARD)} == set(devices)
