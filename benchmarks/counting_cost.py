"""What counting on a modelled card costs this host, by training: python -m benchmarks.counting_cost

CPU time is that of counting alone, after torch is imported and the model built; memory is the process's.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.trainings import Size, Step, social_xlstm
from perfsuite import Plan, open_device

_WIDTH, _HEADS, _BLOCKS, _WORDS, _LENGTH, _BATCH = 768, 12, 12, 50_257, 256, 4


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2))
        self.lift, self.mix = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.grow, self.shrink = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to what came before, then to oneself."""
        parts = self.lift(self.norms[0](x)).split(_WIDTH, 2)
        heads = (part.unflatten(2, (_HEADS, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.mix(seen)
        return x + self.shrink(F.gelu(self.grow(self.norms[1](x))))


class _Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(_LENGTH, _WIDTH)
        self.blocks, self.norm = nn.Sequential(*(_Block() for _ in range(_BLOCKS))), nn.LayerNorm(_WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores of the next word."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        return F.linear(self.norm(self.blocks(x)), self.words.weight)


def gpt2(device: str) -> Step:
    """Return a training step of GPT-2 small with AdamW, on four texts of 256 words."""
    model = _Gpt2().to(device)
    words = torch.randint(0, _WORDS, (_BATCH, _LENGTH)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step


TRAININGS: dict[str, Callable[[str], Step]] = {
    "GPT-2 small, 4 × 256": gpt2,
    "shared encoder, full size": lambda device: social_xlstm("shared", Size(), device),
    "loop over detectors, full size": lambda device: social_xlstm("per_vd", Size(), device),
}


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def child(title: str, card: str) -> str:
    """Count one training in this process; return what that took, as JSON."""
    torch.set_num_threads(1)  # CPU time of several threads would be counted several times
    device = open_device(f"model:{card}", Path(__file__).parents[1])
    device.begin_test()
    step = TRAININGS[title](device.torch_name)
    before = _spent()
    reading = device.measurer(Plan()).step(step, samples_per_step=1, name="step")
    taken = _spent() - before
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    del step  # nothing of it needs to be tidied up
    device.end_test()
    return json.dumps({"kernels": reading.counts["kernels"], "seconds": taken, "bytes": most})


def main(arguments: Sequence[str] | None = None) -> None:
    """Count every training in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--card", default="a10", help="the modelled card (default: a10)")
    parser.add_argument("--loop", action="store_true", help="the loop over detectors too: minutes")
    parser.add_argument("--child", choices=TRAININGS, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.child:
        print(child(asked.child, asked.card))
        return
    print("| training | kernels a step | CPU time of counting | memory of the process |\n|---|---|---|---|")
    for title in TRAININGS:
        if asked.loop or "loop" not in title:
            command = [sys.executable, "-m", "benchmarks.counting_cost", f"--child={title}"]
            ran = subprocess.run(
                [*command, f"--card={asked.card}"], stdout=subprocess.PIPE, text=True, check=True
            )
            found = json.loads(ran.stdout)
            size = f"{found['bytes'] / 1e9:.2f} GB"
            print(f"| {title} | {found['kernels']:,.0f} | {found['seconds']:.1f} s | {size} |", flush=True)


if __name__ == "__main__":
    main()
