"""One of the processes that the contract of O25 starts: trains its share of a batch when it is told to.

    python -m tests.perf.second_process RANK RENDEZVOUS ALONE

The first process reads commands from its input and passes them on; `step` trains once, `gradients PATH`
writes the gradient, `stop` ends all.
"""

import os
import sys
from dataclasses import replace

import torch
import torch.distributed as dist

from social_xlstm.train.distributed import World, wrap
from tests.perf.sizes import SIZES
from tests.perf.subject import Size, Training, parts, training

SIZE = SIZES["several ranks"].cpu
COMMANDS = ("step", "gradients", "stop")


def join_world(world: World, device: str = "cpu", *, alone: bool = False, size: Size = SIZE) -> Training:
    """Build this process's training on its share of the batch, joined with the others unless alone."""
    made = training(device, size)
    share = parts(made.batch, world.size)[world.rank]
    joined = World() if alone else world
    wrapped = wrap(made.model, joined, torch.device(device))
    recipe = replace(
        made.recipe,
        model=wrapped.call,
        without_sync=wrapped.without_sync,
        sum_over_world=joined.sum if joined.size > 1 else None,
        world_size=joined.size,
    )
    return Training(made.model, recipe, share)


def mean_gradients(made: Training) -> dict[str, torch.Tensor]:
    """Return the gradient as the optimizer would see it, without updating."""
    seen: dict[str, torch.Tensor] = {}
    optimizer = made.recipe.optimizer
    plain = optimizer.step

    def look(*_: object, **__: object) -> None:
        seen.update({n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None})

    optimizer.step = look  # type: ignore[method-assign]
    try:
        made.step()
    finally:
        optimizer.step = plain  # type: ignore[method-assign]
    return seen


def main() -> None:
    """Follow the first process's commands until it says stop."""
    torch.set_num_threads(1)
    world = World(int(sys.argv[1]), 2)
    dist.init_process_group("gloo", init_method=sys.argv[2], rank=world.rank, world_size=world.size)
    made = join_world(world, alone=sys.argv[3] == "alone")
    while True:
        line = sys.stdin.readline().split() if world.is_first else []
        told = torch.tensor([COMMANDS.index(line[0]) if line else 2])
        dist.broadcast(told, 0)  # the other process sleeps here until the first is told something
        command = COMMANDS[int(told)]
        if command == "step":
            made.step()
        elif command == "gradients":
            found = mean_gradients(made)
            if world.is_first:
                torch.save(found, line[1])
        dist.barrier()
        if world.is_first:
            print(command, flush=True)
        if command == "stop":
            os._exit(0)  # torch's communication threads may abort a regular end


if __name__ == "__main__":
    main()
