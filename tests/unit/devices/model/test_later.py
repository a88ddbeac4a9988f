"""Operators on a modelled card are put off: what is read has its value, the rest is never computed."""

import copy
import gc
import random

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfsuite.devices.model import later as module
from perfsuite.devices.model.put_off import Operator, computed
from perfsuite.devices.model.shapes import New, outcome
from tests.modelled import model_step
from tests.unit.devices.model.test_device import CARD, device  # noqa: F401  a fixture


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.head = getattr(nn, kind)(16, 24, 2, batch_first=True), nn.Linear(24, 10)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.lift, self.encoder = nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.encoder(self.lift(x)).mean(1))


def perceptron():
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


def convolutional():
    body = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(8 * 8 * 8, 10))


MODELS = {
    "perceptron": (perceptron, lambda: torch.randn(16, 32)),
    "convolutional": (convolutional, lambda: torch.randn(4, 3, 16, 16)),
    "lstm": (lambda: Recurrent("LSTM"), lambda: torch.randn(8, 12, 16)),
    "gru": (lambda: Recurrent("GRU"), lambda: torch.randn(8, 12, 16)),
    "tokens": (Tokens, lambda: torch.randint(0, 50, (6, 9))),
    "half": (lambda: perceptron().bfloat16(), lambda: torch.randn(16, 32).bfloat16()),
}
OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9),
    "adamw": lambda weights: torch.optim.AdamW(weights, 1e-2),
    "fused": lambda weights: torch.optim.AdamW(weights, 1e-2, fused=True),
}


def trained(device, model, inputs, optimizer, *, is_put_off, is_read=False):  # noqa: F811
    """Count steps of a copy of the model; return the reading, and the values it leaves behind."""
    device.begin_test()
    device.watcher.later.is_off = not is_put_off
    model = copy.deepcopy(model).to(CARD)
    x, y = inputs.to(CARD), torch.arange(len(inputs)).remainder(10).to(CARD)
    optimizer, losses = optimizer(model.parameters()), []

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item() if is_read else loss.detach())

    reading = model_step(step, device, 1)
    values = [float(loss) for loss in losses]
    values += [value.detach().cpu() for value in model.state_dict().values()]
    return reading, values + [weight.grad.cpu() for weight in model.parameters()]


def are_equal(some, others):
    pairs = zip(some, others, strict=True)
    return all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in pairs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_counts_are_those_of_computed_steps(device, name, optimizer):  # noqa: F811
    """To the last bit after all steps: losses, weights, statistics, gradients; and the same is counted."""
    torch.manual_seed(0)
    build, inputs = (part() for part in MODELS[name])
    now, computed = trained(device, build, inputs, OPTIMIZERS[optimizer], is_put_off=False)
    later, read = trained(device, build, inputs, OPTIMIZERS[optimizer], is_put_off=True)
    assert len(computed) == len(read) > 10
    assert are_equal(computed, read)
    assert now.counts == later.counts
    assert (now.peak_memory_bytes, now.step_seconds) == (later.peak_memory_bytes, later.step_seconds)


def test_reading_in_every_step_changes_no_value(device):  # noqa: F811
    """A part is computed early and the rest later: nobody's input is lost or overwritten meanwhile."""
    torch.manual_seed(0)
    build, inputs = (part() for part in MODELS["tokens"])
    _, computed = trained(device, build, inputs, OPTIMIZERS["adamw"], is_put_off=False, is_read=True)
    _, read = trained(device, build, inputs, OPTIMIZERS["adamw"], is_put_off=True, is_read=True)
    assert are_equal(computed, read)


CHANGES = [
    lambda x, y: x.add_(y),
    lambda x, y: x.mul_(0.5),
    lambda x, y: x[1:].sub_(y[1:].clone()),
    lambda x, y: x.t().copy_(y.clone()),
    lambda x, y: x[0].zero_(),
    lambda x, y: torch._foreach_add_([x, y], 0.25),
    lambda x, y: x.__setitem__(y > 1, 0.5),
]
RESULTS = [
    lambda x, y: x @ y,
    lambda x, y: x + y.t(),
    lambda x, y: torch.cat([x, y])[2:6],
    lambda x, y: x.tanh().t(),
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: x.sum(0, keepdim=True).expand(4, 4),
    lambda x, y: torch.stack([x, y]).mean(0),
    lambda x, y: torch.empty_like(x).copy_(y),
    lambda x, y: x.clone(),
]
READS = [
    lambda x: x.sum().item(),
    lambda x: x[x > 0].numel(),
    lambda x: x.cpu().numpy().copy(),
    lambda x: x.tolist(),
    lambda x: bool((x > 0).any()),
    lambda x: copy.deepcopy(x).sum().item(),
]


def program(seed, where):
    """Run a random program on four by four numbers; return everything that it read."""
    choose, read = random.Random(seed), []
    numbers = [torch.full((4, 4), 0.1 * i) + torch.eye(4) for i in range(4)]
    tensors = [entry.to(where) for entry in numbers]
    for _ in range(60):
        x, y = choose.choice(tensors), choose.choice(tensors)
        what = choose.random()
        if what < 0.35:
            choose.choice(CHANGES)(x, y)
        elif what < 0.8:
            tensors.append(choose.choice(RESULTS)(x, y).clamp(-3, 3))
        elif what < 0.9 and len(tensors) > 3:
            tensors.pop(choose.randrange(len(tensors)))
        else:
            read.append(choose.choice(READS)(x))
        del x, y
    return read + [entry.tolist() for entry in tensors]


@pytest.mark.parametrize("seed", range(80))
def test_random_programs_read_what_they_would_read_on_the_cpu(device, seed):  # noqa: F811
    """Views, changes in place, memory that is freed, and reads in any order."""
    expected = [program(seed, "cpu")]
    found = []
    device.watcher.settle(torch.ones(1), None)  # something is on the card: not everything
    window = device.start()
    found.append(program(seed, CARD))
    window.mark()
    window.stop()
    assert repr(expected) == repr(found)


def read(device, run):  # noqa: F811
    """Return what a counted step returns."""
    found = []
    model_step(lambda: found.append(run()), device, 1)
    return found


def test_numbers_of_the_host_are_those_of_the_call(device):  # noqa: F811
    """The host goes on and changes them."""
    x, factor = torch.ones(4, device=CARD), torch.tensor(2.0)

    def run():
        factor.fill_(2.0)
        y = x * factor
        factor.fill_(5.0)
        return y.sum().item()

    assert {8.0} == set(read(device, run))


def test_statistics_that_a_norm_writes_are_read_right(device):  # noqa: F811
    """Its schema does not say that it writes them."""
    norm, x = nn.BatchNorm1d(4, momentum=1.0).to(CARD), torch.ones(8, 4, device=CARD)

    def run():
        norm(x * 3)
        return norm.running_mean.cpu().tolist()

    assert [[3.0] * 4] * 2 == read(device, run)[:2]


def test_two_and_two_point_nought_are_told_apart(device):  # noqa: F811
    """They have the same hash, and another type of result."""
    x = torch.ones(4, dtype=torch.int64, device=CARD)
    assert [torch.int64, torch.float32] == read(device, lambda: [(x * 2).dtype, (x * 2.0).dtype])[0]


def test_layers_are_computed_in_the_mode_they_were_called_in(device):  # noqa: F811
    """A recurrent layer keeps nothing for a gradient where none is wanted."""
    model, x = Recurrent("LSTM").to(CARD), torch.ones(2, 3, 16, device=CARD)

    def run():
        with torch.no_grad():
            quiet = model(x)
        loss = model(x).sum()
        loss.backward()
        with torch.no_grad():
            return quiet.sum().item(), loss.item(), model.head.weight.grad.sum().item()

    first = read(device, run)[0]
    assert first[0] == pytest.approx(first[1])
    expected = Recurrent("LSTM")
    expected.load_state_dict(model.state_dict())
    expected(torch.ones(2, 3, 16)).sum().backward()
    assert expected.head.weight.grad.sum().item() == pytest.approx(first[2])


def ran(monkeypatch):
    """Return the names of operators that are computed after all."""
    names = []
    run = Operator.run
    monkeypatch.setattr(Operator, "run", lambda self: names.append(self.func.__name__) or run(self))
    return names


def test_a_read_computes_what_it_depends_on_and_nothing_else(device, monkeypatch):  # noqa: F811
    """And a step that reads nothing computes nothing."""
    names = ran(monkeypatch)
    x = torch.ones(64, 64, device=CARD)
    model_step(lambda: (x @ x).tanh(), device, 1)
    assert [] == names
    model_step(lambda: ((x @ x).tanh(), (x + 1).sum().item()), device, 1)
    assert {"add.Tensor", "sum.default"} == set(names)


def test_what_is_too_much_is_taken_as_zero_and_noted(device, monkeypatch):  # noqa: F811
    """A value may take hours: the step goes on without it."""
    names = ran(monkeypatch)
    monkeypatch.setattr(module, "_MOST_FLOPS", 1000)
    x, read = torch.ones(256, 256, device=CARD), []
    reading = model_step(lambda: read.append((x @ x).sum().item()), device, 1)
    assert {0.0} == set(read)
    assert [] == names
    assert any("taken as 0" in note for note in reading.notes)


def test_memory_is_what_is_there_at_a_time(device, monkeypatch):  # noqa: F811
    """Many steps make much that is freed again: that is computed; what is held at once is too much."""
    monkeypatch.setattr(module, "_MOST_BYTES", 5 * 2**20)
    x = torch.ones(2**18, device=CARD)  # 1 MiB

    def run(is_held):
        y, held = x, []
        for _ in range(20):
            y = y + 1
            held += [y] * is_held
        return y.sum().item()

    assert {21.0 * 2**18} == set(read(device, lambda: run(False)))
    assert {0.0} == set(read(device, lambda: run(True)))


def test_what_is_cheap_is_right_after_what_was_not(device, monkeypatch):  # noqa: F811
    """A recurrence that asks in its first time step whether its state is zero goes on as on a card."""
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    monkeypatch.setattr(module, "_MOST_FLOPS", 1000)
    x = torch.ones(512, 512, device=CARD)
    found = read(device, lambda: ((x @ x).sum().item(), torch.zeros(8, device=CARD).add(1).sum().item()))
    assert {(0.0, 8.0)} == set(found)


def test_what_is_written_over_a_value_that_was_too_much_is_lost_with_it(device, monkeypatch):  # noqa: F811
    """Half of a tensor would be right, and nobody could tell which."""
    monkeypatch.setattr(module, "_MOST_FLOPS", 1000)
    x = torch.ones(256, 256, device=CARD)

    def run():
        y = x @ x
        before = y + 1
        y[x > 0] = 2.0
        monkeypatch.setattr(module, "_MOST_FLOPS", 1e12)
        return y.sum().item(), before.sum().item()

    assert (0.0, 0.0) == read(device, run)[0]


def test_a_question_about_everything_is_too_much(device, monkeypatch):  # noqa: F811
    """Looking for what it depends on is bounded as well."""
    monkeypatch.setattr(module, "_MOST_INPUTS", 5)
    monkeypatch.setattr(module, "_FEW_INPUTS", 5)
    x = torch.ones(4, device=CARD)

    def run():
        y = x
        for _ in range(10):
            y = y + 1
        return y.sum().item()

    assert {0.0} == set(read(device, run))


def test_lists_that_are_too_long_lose_their_beginning(device, monkeypatch):  # noqa: F811
    """The oldest operators are forgotten; what depends on them is taken as zero, what does not is right."""
    monkeypatch.setattr(module, "_MOST_OPERATORS", 20)
    x, read = torch.ones(4, device=CARD), []

    def step():
        y = x + 1
        for _ in range(30):
            y = y + 1
        read.append((y.sum().item(), (x * 3).sum().item()))

    model_step(step, device, 1)
    assert {(0.0, 12.0)} == set(read)


def test_who_has_a_pointer_sees_everything(device):  # noqa: F811
    """Memory that a library of the user's reads and writes is computed from there on."""
    x, seen = torch.ones(4, device=CARD), []

    def step():
        y = x + 1
        view = y.numpy()
        y.add_(1)
        seen.append(view.tolist())

    model_step(step, device, 1)
    assert [[3.0] * 4] * len(seen) == seen


def test_memory_that_only_waits_is_not_in_the_way(device):  # noqa: F811
    """A model that is dropped between two readings is freed, though operators on it were never computed."""

    def peak(width):
        model = nn.Linear(width, width).to(CARD)
        x = torch.ones(4, width, device=CARD)
        return model_step(lambda: model(x).sum().backward(), device, 1).peak_memory_bytes

    small = peak(64)
    peak(512)
    gc.collect()
    assert small == peak(64)


def stepping(model, x):
    """Return a step that trains a model with AdamW, and the optimizer."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    return step, optimizer


def test_weights_that_were_too_expensive_are_those_from_before(device, monkeypatch):  # noqa: F811
    """Who goes on with the model after counting has a model, and a warning."""
    monkeypatch.setattr(module, "_MOST_OPERATORS", 5)
    model = nn.Linear(8, 8).to(CARD)
    before = model.bias.detach().cpu()
    step, _ = stepping(model, torch.ones(4, 8, device=CARD))
    model_step(step, device, 1)
    with pytest.warns(UserWarning, match="weights are as before"):
        found = model.bias.detach().cpu()
    assert torch.equal(before, found)
    with torch.no_grad(), pytest.warns(UserWarning, match="weights are as before"):
        model.bias[3].add_(1.0)
    with pytest.warns(UserWarning, match="weights are as before"):
        found = model.bias.detach().cpu()
    assert [3] == (found - before).nonzero().flatten().tolist()


@pytest.mark.parametrize("remembered", [5, 10_000])
def test_after_a_test_weights_are_as_before_and_gradients_zero(device, monkeypatch, remembered):  # noqa: F811
    """Counting does not train, and leaves no memory behind that nobody has written to."""
    monkeypatch.setattr(module, "_MOST_OPERATORS", remembered)
    model = nn.Linear(300, 300)
    before = copy.deepcopy(model.state_dict())
    step, optimizer = stepping(model.to(CARD), torch.ones(4, 300, device=CARD))
    total = torch.full((4,), 5.0, device=CARD)  # first touched when something is forgotten already

    def summed():
        step()
        total.add_(model.weight.grad.sum())

    model_step(summed, device, 1)
    device.end_test()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [5.0] * 4 == total.tolist()
    assert not model.weight.grad.any()
    assert not optimizer.state[model.weight]["exp_avg"].any()


def test_what_is_recomputed_draws_the_same_random_numbers(device):  # noqa: F811
    """Dropout twice in a checkpointed block, in every step: zero where the gradient is zero."""
    x = torch.ones(1000, device=CARD, requires_grad=True)
    drop = nn.functional.dropout

    def run():
        x.grad = None
        y = checkpoint(lambda value: drop(drop(value, 0.5), 0.5), x, use_reentrant=False)
        y.sum().backward()
        return y.detach(), x.grad

    steps = [(out.cpu(), gradient.cpu()) for out, gradient in read(device, run)]
    assert len(steps) > 2
    for out, gradient in steps:
        assert torch.equal(out, gradient)
        assert 600 < int((out == 0).sum()) < 900


def test_finding_a_shape_draws_no_random_numbers():
    """The first call of a kind would go on with others than the next."""
    torch.manual_seed(7)
    outcome(torch.ops.aten.native_dropout.default, (torch.ones(8), 0.5, True), {})
    found = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), found)


def test_products_of_half_precision_are_computed_in_float32():
    """A CPU takes ages for them; the result is rounded as the operator would."""
    seen = []

    class Product:
        overloadpacket = torch.ops.aten.mm
        _schema = torch.ops.aten.mm.default._schema

        def __call__(self, left, right):
            seen.append((left.dtype, right.dtype))
            return left @ right

    half = torch.ones(2, 2, dtype=torch.float16)
    assert torch.float16 == computed(Product(), [half, half], {}).dtype
    assert [(torch.float32, torch.float32)] == seen


def test_gradients_are_presumed_finite(device, monkeypatch):  # noqa: F811
    """A scaler asks in every step; the answer is not worth computing the step."""
    names = ran(monkeypatch)
    model = nn.Linear(64, 64).to(CARD)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.ones(4, 64, device=CARD)

    def step():
        optimizer.zero_grad()
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    reading = model_step(step, device, 1)
    assert 1 <= reading.counts["syncs"] <= 2
    assert not [name for name in names if "mm" in name]


LAYOUTS = {
    "transposed": lambda: torch.ones(300, 400).t(),
    "heads": lambda: torch.ones(8, 64, 4, 64).transpose(1, 2),
    "sliced": lambda: torch.ones(500, 600)[:, 3:400],
    "expanded": lambda: torch.ones(400, 1).expand(400, 300),
    "channels last": lambda: torch.ones(4, 16, 40, 40).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "run",
    [
        lambda x: (torch.ops.aten.add.Tensor, (x, x.contiguous())),
        lambda x: (torch.ops.aten.tanh.default, (x,)),
        lambda x: (torch.ops.aten.clone.default, (x,)),
        lambda x: (torch.ops.aten.softplus_backward.default, (x, x.contiguous(), 1, 20)),
        lambda x: (torch.ops.aten.native_dropout_backward.default, (x, torch.ones(x.shape) > 0, 2.0)),
        lambda x: (torch.ops.aten.sum.dim_IntList, (x, [-1])),
        lambda x: (torch.ops.aten._softmax.default, (x, -1, False)),
        lambda x: (torch.ops.aten.mse_loss.default, (x, x.contiguous())),
        lambda x: (torch.ops.aten.mul_.Tensor, (x.clone(), 2)),
    ],
)
def test_results_have_the_layout_that_computing_gives(layout, run):
    """Also where torch's meta device says another."""
    func, args = run(LAYOUTS[layout]())
    (found,) = outcome(func, args, {}).parts
    result = func(*args)
    if isinstance(found, New):
        assert (tuple(result.shape), result.stride(), result.dtype) == found[:3]
        assert result.untyped_storage().nbytes() == found.make().untyped_storage().nbytes()
    else:
        assert result is args[found.number]
