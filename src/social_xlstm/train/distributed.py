"""One process or many: the environment set by torchrun, the process group, sums over all processes (O25)."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from social_xlstm.config import GradientCompression, TrainerConfig
from social_xlstm.errors import InputError

_HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
_SENT_AS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SECONDS_TO_BE_ENDED = 5.0  # torchrun looks ten times a second, but the first to fail may take time to die


@dataclass(frozen=True)
class World:
    """This process's place among all that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "World":
        """Read what torchrun set for this process; without torchrun there is one process."""
        env = os.environ if environment is None else environment
        if "RANK" not in env or "WORLD_SIZE" not in env:
            return cls()
        try:
            rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
            local = int(env.get("LOCAL_RANK", rank))
        except ValueError:
            raise InputError(
                "RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers; start with torchrun, which sets them"
            ) from None
        if not 0 <= rank < size:
            raise InputError(
                f"RANK {rank} is outside WORLD_SIZE {size}; start with torchrun, which sets both"
            )
        return cls(rank, size, local)

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Choose this process's device: `auto` takes a GPU of its own where there is one."""
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(name)
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise InputError("trainer.device is cuda, but torch sees no GPU here; set it to cpu or auto")
            index = self.local_rank if device.index is None else device.index
            if index >= torch.cuda.device_count():
                raise InputError(
                    f"there is no GPU {index}: torch sees {torch.cuda.device_count()}; "
                    "start fewer processes or choose another trainer.device"
                )
            return torch.device("cuda", index)
        return device

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add a tensor over all processes, on the device and without reading it."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is set in any process: a host sync with several of them, free with one."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=device)).item())  # host sync

    def gather(self, value: Any) -> list[Any]:
        """Collect one small object from every process, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait until all processes reach this point."""
        if self.size > 1:
            dist.barrier()


def _store_of_this_attempt(world: World, timeout: float) -> dist.Store | None:
    """Return the store by which the processes find each other; None leaves it to torch.

    One torchrun keeps one store for all its attempts, and torch adds no prefix (2.13): restarted processes
    would read the addresses of the dead ones and wait for them until the timeout.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None:
        return None
    found = dist.rendezvous("env://", world.rank, world.size, timeout=timedelta(seconds=timeout))
    return dist.PrefixStore(f"attempt-{attempt}", next(found)[0])


def _let_the_first_failure_speak(store: dist.Store) -> None:
    """Wait to be stopped if another process failed before: its error is the cause, this one a consequence.

    torchrun shows the failure it notices first, in whole seconds. A process that lost its connection to the
    failed one often exits sooner than that one.
    """
    with suppress(RuntimeError):  # torchrun itself is gone: there is nobody to speak to
        if store.add("failures", 1) > 1:
            time.sleep(_SECONDS_TO_BE_ENDED)


@contextmanager
def process_group(world: World, device: torch.device, timeout: float = 600.0) -> Iterator[World]:
    """Join the other processes for the time of the block: nccl between GPUs, gloo between CPUs.

    A process that waits longer than `timeout` seconds raises: a hanging process must not hang all.
    """
    if world.size == 1:
        yield world
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = _store_of_this_attempt(world, timeout)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=timeout),
        store=store,
    )
    try:
        yield world
        dist.barrier()  # nobody takes its end of the connection down while another still talks
    except Exception:  # whatever it is, it is raised again
        if store is not None:
            _let_the_first_failure_speak(store)
        raise
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Wrapped:
    """The model as it is called, and how to add up gradients without sending them."""

    call: nn.Module
    without_sync: Callable[[], AbstractContextManager[Any]]


def wrap(
    model: nn.Module, world: World, device: torch.device, config: TrainerConfig | None = None
) -> Wrapped:
    """Average gradients over the processes, where there are several."""
    if world.size == 1:
        return Wrapped(model, nullcontext)
    config = config or TrainerConfig()
    check_compression(config.gradient_compression, device)
    ids = [device.index] if device.type == "cuda" else None
    parallel = DistributedDataParallel(
        model,
        device_ids=ids,
        gradient_as_bucket_view=True,
        bucket_cap_mb=config.ddp_bucket_mb,
        static_graph=has_static_graph(config),
    )
    if config.gradient_compression != "none":
        compress = _HOOKS[config.gradient_compression]

        # Torch refuses its bfloat16 hook by name on anything but nccl, though gloo adds bfloat16 as well;
        # whether it can here was tried above.
        def send(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            return compress(None, bucket)

        parallel.register_comm_hook(None, send)
    return Wrapped(parallel, parallel.no_sync)


def has_static_graph(config: TrainerConfig) -> bool:
    """Return whether every backward pass is the same and sends its gradients.

    A static graph learns in its first pass how often each gradient comes. Passes that send nothing would be
    counted too, and the trial of a compilation is a pass of its own.
    """
    return config.accumulate_grad_batches == 1 and not config.compile


def check_compression(compression: GradientCompression, device: torch.device) -> None:
    """Refuse a compression whose numbers the processes cannot add, by adding one; all must call this."""
    if compression == "none":
        return
    trial = torch.ones(1, dtype=_SENT_AS[compression], device=device)
    try:
        dist.all_reduce(trial)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise InputError(
            f"trainer.gradient_compression is {compression}, which {dist.get_backend()} cannot add here "
            f"({reason}); take another, or none"
        ) from None


def check_devices(devices: int, world: World) -> None:
    """Refuse `trainer.devices` that differs from torchrun's number of processes, with the command to use."""
    if devices > 1 and devices != world.size:
        raise InputError(
            f"trainer.devices is {devices}, but {world.size} process(es) run; start with "
            f"`torchrun --nproc-per-node {devices} -m social_xlstm train …`"
        )
