"""Everything a training can be configured with: records with the reference model's defaults, and rules."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

EncoderKind = Literal["per_vd", "grouped", "shared", "shared_heads", "stacked"]
CellKind = Literal["package", "sync_free", "fast", "lstm"]
Precision = Literal["32-true", "16-mixed", "bf16-mixed"]
Kernel = Literal["uniform", "gaussian", "exponential", "linear", "inverse"]
GradientCompression = Literal["none", "bf16", "fp16"]
_LARGEST = 2**31 - 1  # sizes beyond it overflow somewhere below us, with a worse message
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True)
class SplitConfig:
    """Shares of the time axis, in this order and without overlap."""

    train: float = 0.7
    val: float = 0.1
    test: float = 0.2


@dataclass(frozen=True)
class LoaderConfig:
    """How windows reach the device (O8–O14, O23, O24)."""

    batch_size: int = 64
    num_workers: int | Literal["auto"] = "auto"
    pin_memory: bool = True
    prefetch_factor: int | None = None
    persistent_workers: bool = True
    drop_last: bool = True
    timeout: float = 0.0
    resident: bool = False


@dataclass(frozen=True)
class DataConfig:
    """Which file, which part of it, and how it becomes windows."""

    path: str = "data.h5"
    split: SplitConfig = field(default_factory=SplitConfig)
    sequence_length: int = 12
    prediction_length: int = 3
    stride: int = 1
    normalize: Literal["standard", "minmax", "max", "none"] = "standard"
    selected_features: tuple[str, ...] | None = None
    selected_vdids: tuple[str, ...] | None = None
    fill_missing: Literal["linear", "forward", "mean", "zero"] = "linear"
    batch_format: Literal["centralized", "distributed"] = "centralized"
    storage: Literal["shared", "memmap", "file"] = "shared"  # where prepared data lives (O23)
    cache_dir: str | None = None  # for memmap and file; None is a folder beside the data
    loader: LoaderConfig = field(default_factory=LoaderConfig)


@dataclass(frozen=True)
class XLSTMConfig:
    """The block stack of one encoder."""

    embedding_dim: int = 128
    num_blocks: int = 6
    slstm_at: tuple[int, ...] = (1, 3)
    slstm_backend: Literal["vanilla", "cuda"] = "vanilla"
    context_length: int = 12
    num_heads: int = 4
    conv_kernel: int = 4
    qkv_block_size: int = 4
    mlstm_proj_factor: float = 2.0
    slstm_proj_factor: float = 1.3
    dropout: float = 0.1


@dataclass(frozen=True)
class ModelConfig:
    """Which encoder, which cells, which readout."""

    xlstm: XLSTMConfig = field(default_factory=XLSTMConfig)
    encoder: EncoderKind = "shared"
    cell: CellKind = "fast"
    group_size: int = 32
    detector_embedding: bool = False
    attention_readout: bool = False
    context_gate: bool = False
    residual: bool = False


@dataclass(frozen=True)
class PoolingConfig:
    """How the states of a detector's neighbours are pooled."""

    enabled: bool = True
    pool_type: Literal["mean", "max"] = "mean"
    radius: float = 2000.0
    kernel: Kernel = "gaussian"
    learnable: bool = False
    sparse: bool = False
    same_direction: bool = False


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer by name, its parameters, and the schedule of its rate."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_share: float = 0.0


@dataclass(frozen=True)
class TrainerConfig:
    """How long, how precise, how often."""

    max_epochs: int = 20
    precision: Precision = "32-true"
    accumulate_grad_batches: int = 1
    log_every_n_steps: int = 50
    checkpoint_every_n_steps: int | None = None
    gradient_clip_val: float | None = 1.0
    devices: int = 1
    device: str = "auto"
    tf32: bool = True
    compile: bool = False
    set_to_none: bool = True
    non_blocking: bool = True
    early_stop_patience: int | None = None
    limit_train_batches: int | None = None
    limit_val_batches: int | None = None
    out_of_memory: Literal["ladder", "raise"] = "ladder"
    ddp_bucket_mb: int = 25  # gradients are sent in portions of this size, while others are still computed
    ddp_timeout: float = 600.0  # seconds until a process that no longer answers is given up
    gradient_compression: GradientCompression = "none"  # what gradients are rounded to while they are sent


@dataclass(frozen=True)
class ExperimentConfig:
    """Where results go and what makes them repeatable."""

    name: str = "social-xlstm"
    seed: int = 0
    output_dir: str = "runs"


@dataclass(frozen=True)
class Config:
    """The configuration of a whole training."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    social_pooling: PoolingConfig = field(default_factory=PoolingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words and as a predicate."""

    words: str
    holds: Callable[[Any], bool]


_COUNT = Rule(f"between 1 and {_LARGEST}", lambda v: 1 <= v <= _LARGEST)
_POSITIVE = Rule("above 0 and finite", lambda v: 0 < v < math.inf)
_NOT_NEGATIVE = Rule("0 or more and finite", lambda v: 0 <= v < math.inf)
_SHARE = Rule("between 0 and 1", lambda v: 0 <= v <= 1)
_NOT_EMPTY = Rule("not empty", lambda v: len(v) > 0)
_DISTINCT = Rule("a list of at least one, none twice", lambda v: 0 < len(v) == len(set(v)))

RULES: dict[str, Rule] = {
    "data.path": _NOT_EMPTY,
    "data.split.train": Rule("above 0 and at most 1", lambda v: 0 < v <= 1),
    "data.split.val": _SHARE,
    "data.split.test": _SHARE,
    "data.sequence_length": _COUNT,
    "data.prediction_length": _COUNT,
    "data.stride": _COUNT,
    "data.selected_features": _DISTINCT,
    "data.selected_vdids": _DISTINCT,
    "data.loader.batch_size": _COUNT,
    "data.loader.num_workers": Rule("auto or between 0 and 1024", lambda v: v == "auto" or 0 <= v <= 1024),
    "data.loader.prefetch_factor": Rule("between 1 and 1024", lambda v: 1 <= v <= 1024),
    "data.loader.timeout": _NOT_NEGATIVE,
    "model.group_size": _COUNT,
    "model.xlstm.embedding_dim": Rule("between 2 and 65536", lambda v: 2 <= v <= 65536),
    "model.xlstm.num_blocks": Rule("between 1 and 1024", lambda v: 1 <= v <= 1024),
    "model.xlstm.context_length": _COUNT,
    "model.xlstm.num_heads": Rule("between 1 and 1024", lambda v: 1 <= v <= 1024),
    "model.xlstm.conv_kernel": Rule("between 1 and 1024", lambda v: 1 <= v <= 1024),
    "model.xlstm.qkv_block_size": Rule("between 1 and 65536", lambda v: 1 <= v <= 65536),
    "model.xlstm.mlstm_proj_factor": Rule("above 0 and at most 64", lambda v: 0 < v <= 64),
    "model.xlstm.slstm_proj_factor": Rule("above 0 and at most 64", lambda v: 0 < v <= 64),
    "model.xlstm.dropout": Rule("at least 0 and below 1", lambda v: 0 <= v < 1),
    "social_pooling.radius": Rule("0 or more metres", lambda v: v >= 0),
    "trainer.max_epochs": _COUNT,
    "trainer.accumulate_grad_batches": _COUNT,
    "trainer.log_every_n_steps": _COUNT,
    "trainer.checkpoint_every_n_steps": _COUNT,
    "trainer.gradient_clip_val": _POSITIVE,
    "trainer.devices": Rule("between 1 and 4096", lambda v: 1 <= v <= 4096),
    "trainer.device": Rule("auto, cpu, cuda or cuda:<index>", lambda v: bool(_DEVICE.fullmatch(v))),
    "trainer.early_stop_patience": _COUNT,
    "trainer.limit_train_batches": _COUNT,
    "trainer.limit_val_batches": _COUNT,
    "trainer.ddp_bucket_mb": Rule("between 1 and 65536", lambda v: 1 <= v <= 65536),
    "trainer.ddp_timeout": _POSITIVE,
    "optimizer.lr": _POSITIVE,
    "optimizer.weight_decay": _NOT_NEGATIVE,
    "optimizer.warmup_share": Rule("at least 0 and below 1", lambda v: 0 <= v < 1),
    "experiment.name": Rule(
        "a name of letters, digits, dot, dash and underscore",
        lambda v: bool(re.fullmatch(r"[\w][\w.-]{0,99}", v)),
    ),
    "experiment.seed": Rule("between 0 and 4294967295", lambda v: 0 <= v < 2**32),
    "experiment.output_dir": _NOT_EMPTY,
}


def problems_of(config: Config) -> list[str]:
    """List every value that is out of range or contradicts another one."""
    found = []
    for key, rule in RULES.items():
        value = value_at(config, key)
        if value is not None and not rule.holds(value):
            found.append(f"{key}: {_shown(value)} must be {rule.words}")
    return found + list(_contradictions(config))


def value_at(config: Config, key: str) -> Any:
    """Follow a dotted key through the records."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _contradictions(config: Config) -> Iterator[str]:
    """Compare values that only make sense together."""
    split, stack, data = config.data.split, config.model.xlstm, config.data
    if split.train + split.val + split.test > 1 + 1e-6:
        total = split.train + split.val + split.test
        yield f"data.split: the shares add up to {total:g}; lower them to 1 in total"
    if stack.num_heads >= 1 and stack.embedding_dim % stack.num_heads:
        yield (
            f"model.xlstm.embedding_dim: {stack.embedding_dim} cannot be divided among "
            f"{stack.num_heads} heads; take a multiple of model.xlstm.num_heads"
        )
    outside = [at for at in stack.slstm_at if not 0 <= at < stack.num_blocks]
    if outside:
        yield (
            f"model.xlstm.slstm_at: block {_shown(outside[0])} does not exist; "
            f"num_blocks {stack.num_blocks} has blocks 0 to {stack.num_blocks - 1}"
        )
    if len(set(stack.slstm_at)) < len(stack.slstm_at):
        yield "model.xlstm.slstm_at: a block is named twice; name each once"
    if stack.context_length < data.sequence_length:
        yield (
            f"model.xlstm.context_length: {stack.context_length} is shorter than "
            f"data.sequence_length {data.sequence_length}; raise it to at least that"
        )
    if config.trainer.gradient_compression == "fp16" and config.trainer.precision != "16-mixed":
        yield (
            "trainer.gradient_compression: fp16 loses small gradients unless the loss is scaled, which only "
            f"precision 16-mixed does, and it is {config.trainer.precision}; take bf16"
        )
    if config.trainer.early_stop_patience is not None and split.val == 0:
        yield "trainer.early_stop_patience: needs a validation part; raise data.split.val above 0"
