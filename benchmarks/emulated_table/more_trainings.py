"""Trainings written after the model's rules, to see what these are worth on what they were not made for."""

import copy
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.emulated_table.trainings import (
    HEADS,
    LENGTH,
    ROWS,
    WIDTH,
    Step,
    adamw,
    fused,
    mlp,
    named,
    plain,
    rows,
    trained,
    words,
)
from tests.perf.subject import Size, training

BATCH = 8


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.convolutions
        inner = F.relu(self.norms[0](first(x)))
        return F.relu(x + self.norms[1](second(inner)))


@named("residual network")
def _(device: str) -> Step:
    stem = (nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return plain(device, nn.Sequential(*stem, Residual(16), Residual(16), *head), BATCH, 3, 32, 32)


@named("depthwise convolutions")
def _(device: str) -> Step:
    model = nn.Sequential(
        *(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.Hardswish(),
            nn.Conv2d(32, 32, 3, 1, 1, groups=32),
            nn.BatchNorm2d(32),
        ),
        *(nn.ReLU6(), nn.Conv2d(32, 16, 1), nn.AvgPool2d(2)),
    )
    return plain(device, model, 4, 3, 32, 32)


@named("transposed convolution, upsampling")
def _(device: str) -> Step:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU()),
        *(nn.ConvTranspose2d(16, 8, 2, 2), nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 1)),
    )
    return plain(device, model, 4, 3, 16, 16)


def momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)


@named("batch norm of rows, momentum")
def _(device: str) -> Step:
    parts = (
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.LeakyReLU(),
        nn.Dropout(0.2),
        nn.Linear(WIDTH, 10),
    )
    return plain(device, nn.Sequential(*parts), optimize=momentum)


@named("decoder layer with a boolean mask")
def _(device: str) -> Step:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.1, batch_first=True).to(device)
    x, memory = rows(device, BATCH, LENGTH, WIDTH), rows(device, BATCH, 12, WIDTH)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1).to(device)
    return trained(lambda: layer(x, memory, tgt_mask=mask).square().mean(), list(layer.parameters()))


class Rotary(nn.Module):
    """A block with RMS norms, turned queries and keys, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.mixes = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        turns = torch.arange(LENGTH)[:, None] / 10_000 ** (torch.arange(0, 16, 2) / 16)
        angles = torch.cat([turns, turns], -1)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cosines + torch.cat([-second, first], -1) * self.sines

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x)
        query, key, value = (mix(h).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for mix in self.mixes[:3])
        mixed = F.scaled_dot_product_attention(self.turned(query), self.turned(key), value, is_causal=True)
        x = x + self.mixes[3](mixed.transpose(1, 2).reshape(x.shape))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@named("RMS norm and rotary attention")
def _(device: str) -> Step:
    return plain(device, Rotary(), BATCH, LENGTH, WIDTH, optimize=fused)


@named("the same with bfloat16 weights")
def _(device: str) -> Step:
    model, x = Rotary().to(device, torch.bfloat16), rows(device, BATCH, LENGTH, WIDTH).to(torch.bfloat16)
    return trained(lambda: model(x).float().square().mean(), list(model.parameters()), fused)


@named("the same in autocast, clipped")
def _(device: str) -> Step:
    kind = torch.device(device).type
    model, x = Rotary().to(device), rows(device, BATCH, LENGTH, WIDTH)
    optimizer = adamw(list(model.parameters()))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(kind, torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


@named("mixture of experts")
def _(device: str) -> Step:
    gate, x = nn.Linear(WIDTH, 4).to(device), rows(device)
    experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)).to(device)

    def loss() -> torch.Tensor:
        weights, chosen = gate(x).softmax(-1).topk(2, -1)
        share = torch.zeros(ROWS, 4, device=device).scatter(1, chosen, weights)
        mixed = sum(share[:, i : i + 1] * expert(x) for i, expert in enumerate(experts))
        return mixed.square().mean()

    return trained(loss, [*gate.parameters(), *experts.parameters()])


@named("contrastive")
def _(device: str) -> Step:
    model, first, second, target = mlp(device), rows(device), rows(device), torch.arange(ROWS).to(device)

    def loss() -> torch.Tensor:
        left, right = (F.normalize(model(x), dim=-1) for x in (first, second))
        return F.cross_entropy(left @ right.T / 0.1, target)

    return trained(loss, list(model.parameters()))


@named("variational autoencoder")
def _(device: str) -> Step:
    encoder, decoder, x = nn.Linear(WIDTH, 32).to(device), nn.Linear(16, WIDTH).to(device), rows(device)

    def loss() -> torch.Tensor:
        mean, spread = encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return F.mse_loss(decoder(drawn), x) - 0.5 * (1 + spread - mean.pow(2) - spread.exp()).mean()

    return trained(loss, [*encoder.parameters(), *decoder.parameters()])


@named("logits' entropy, smooth L1, AMSGrad")
def _(device: str) -> Step:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1)).to(device)
    x, target = rows(device), torch.ones(ROWS, 1).to(device)

    def loss() -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(model(x), target) + F.smooth_l1_loss(model(x), target)

    return trained(loss, list(model.parameters()), lambda given: torch.optim.Adam(given, amsgrad=True))


@named("embedding of 8,192 words")
def _(device: str) -> Step:
    model, x = nn.Embedding(1000, WIDTH).to(device), words(device, WIDTH, 128)
    return trained(lambda: model(x).square().mean(), list(model.parameters()))


@named("MLP of 4,096 rows")
def _(device: str) -> Step:
    return plain(device, nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), 4096, 256)


@named("layer norm of 70,000 rows")
def _(device: str) -> Step:
    return plain(device, nn.LayerNorm(32), 70_000, 32)


@named("softmax and its logarithm")
def _(device: str) -> Step:
    model = nn.Sequential(nn.Conv1d(4, 8, 5, padding=2), nn.ELU(), nn.Flatten(), nn.Linear(8 * LENGTH, 10))
    model, x, target = model.to(device), rows(device, 16, 4, LENGTH), words(device, 16)

    def loss() -> torch.Tensor:
        return F.nll_loss(F.log_softmax(model(x), -1), target) + model(x).softmax(-1).log().mean()

    return trained(loss, list(model.parameters()))


@named("attention with its weights")
def _(device: str) -> Step:
    layer, x = (
        nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).to(device),
        rows(device, BATCH, LENGTH, WIDTH),
    )
    return trained(lambda: sum(part.square().mean() for part in layer(x, x, x)), list(layer.parameters()))


@named("label smoothing, RMSprop")
def _(device: str) -> Step:
    model, x, target = nn.Linear(WIDTH, 10).to(device), rows(device), words(device, ROWS)
    loss = lambda: F.cross_entropy(model(x), target, label_smoothing=0.1)  # noqa: E731
    return trained(loss, list(model.parameters()), torch.optim.RMSprop)


@named("pads, slices, flips and a running sum")
def _(device: str) -> Step:
    model, x = nn.Linear(WIDTH, WIDTH).to(device), rows(device, BATCH, LENGTH, WIDTH)

    def loss() -> torch.Tensor:
        both = torch.cat([F.pad(model(x)[:, 1:], (0, 0, 1, 0)), model(x).flip(1)], -1)
        return both[..., ::2].cumsum(1).abs().max(1)[0].mean()

    return trained(loss, list(model.parameters()))


@named("graph convolution")
def _(device: str) -> Step:
    model, x, source, target = (
        nn.Linear(WIDTH, WIDTH).to(device),
        rows(device),
        words(device, 100),
        words(device, 100),
    )

    def loss() -> torch.Tensor:
        h = model(x)
        summed = torch.zeros_like(h).index_add_(0, target, h[source])
        degree = torch.zeros(ROWS, device=device).index_add_(0, target, torch.ones(100, device=device))
        return (summed / degree.clamp(min=1)[:, None]).relu().square().sum().sqrt()

    return trained(loss, list(model.parameters()))


@named("averaged weights and a schedule")
def _(device: str) -> Step:
    model, x = mlp(device), rows(device)
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)

    return step


VARIANTS: dict[str, dict[str, object]] = {
    "stacked encoders": {"encoder": "stacked"},
    "groups of detectors": {"encoder": "grouped", "group_size": 3},
    "shared encoder, fast cell": {"cell": "fast"},
    "shared encoder, the package's cell": {"cell": "package"},
    "shared encoder, bf16-mixed": {"precision": "bf16-mixed"},
    "shared encoder, 16-mixed": {"precision": "16-mixed"},
}
for _title, _options in VARIANTS.items():
    named(_title)(lambda device, given=_options: training(device, Size(windows=2, detectors=6), **given).step)
