"""Everything a training can be told, as frozen records with the defaults of the reference model."""

from dataclasses import dataclass, field
from typing import Literal

EncoderKind = Literal["per_vd", "grouped", "shared", "shared_heads", "stacked"]
CellKind = Literal["package", "sync_free", "fast", "lstm"]
Precision = Literal["32-true", "16-mixed", "bf16-mixed"]
Kernel = Literal["uniform", "gaussian", "exponential", "linear", "inverse"]
GradientCompression = Literal["none", "bf16", "fp16"]


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
    """How a detector sees its neighbours."""

    enabled: bool = True
    pool_type: Literal["mean", "max"] = "mean"
    radius: float = 2000.0
    kernel: Kernel = "gaussian"
    learnable: bool = False
    sparse: bool = False
    same_direction: bool = False


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer by name, its numbers, and how its rate changes over the training."""

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
    """One training, whole."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    social_pooling: PoolingConfig = field(default_factory=PoolingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
