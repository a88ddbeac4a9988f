"""Build one detector's block stack from the package's cells, our own or nn.LSTM."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from social_xlstm.config import CellKind, XLSTMConfig
from social_xlstm.errors import InputError
from social_xlstm.model.layers import CausalConv, Norm
from social_xlstm.model.mlstm import MLSTMBlock
from social_xlstm.model.slstm import SLSTMBlock

if TYPE_CHECKING:
    from xlstm import xLSTMBlockStackConfig

# The package rounds every widened layer up to a multiple of this.
WIDTH_MULTIPLE = 64


class BlockStack(nn.Module):
    """Run blocks one after another and normalize what leaves the last one."""

    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.post_blocks_norm = Norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]."""
        for block in self.blocks:
            x = block(x)
        return self.post_blocks_norm(x)


class LSTMStack(nn.Module):
    """Offer nn.LSTM behind the block stack's signature."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        # nn.LSTM puts dropout between layers only, and warns where there is no such place.
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map [M,T,E] to [M,T,E]."""
        return self.lstm(x)[0]


def build_stack(config: XLSTMConfig, cell: CellKind) -> nn.Module:
    """Build the stack [M,T,E] → [M,T,E] of the configured cell."""
    if cell == "lstm":
        _check_counts(config)
        return LSTMStack(config.embedding_dim, config.num_blocks, config.dropout)
    check_config(config)
    if cell == "fast":
        return _fast_stack(config)
    if cell == "sync_free":
        return _sync_free_stack(config)
    if cell == "package":
        return _package_stack(config)
    raise InputError(f"model.cell {cell!r} is unknown; choose package, sync_free, fast or lstm")


def widened(width: int, factor: float) -> int:
    """Return factor·width rounded up as the package rounds it."""
    return math.ceil(factor * width / WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def check_config(config: XLSTMConfig) -> None:
    """Refuse a stack whose widths, heads or block positions do not fit together."""
    _check_counts(config)
    E, heads = config.embedding_dim, config.num_heads
    if heads < 1 or E % heads or E // heads < 2:
        raise InputError(
            f"model.xlstm.embedding_dim {E} does not split into {heads} heads of at least two channels; "
            "choose an embedding_dim that is a multiple of num_heads"
        )
    inner = widened(E, config.mlstm_proj_factor)
    if config.mlstm_proj_factor <= 0 or config.slstm_proj_factor <= 0:
        raise InputError("model.xlstm.mlstm_proj_factor and slstm_proj_factor must be positive")
    if config.qkv_block_size < 1 or inner % config.qkv_block_size or inner % heads:
        raise InputError(
            f"the mLSTM's inner width {inner} is not a multiple of qkv_block_size {config.qkv_block_size} "
            f"and num_heads {heads}; powers of two fit"
        )
    # One past step is the least the package's convolution can pad.
    if config.conv_kernel < 2:
        raise InputError(f"model.xlstm.conv_kernel is {config.conv_kernel}; use at least 2")
    outside = [index for index in config.slstm_at if not 0 <= index < config.num_blocks]
    if outside:
        raise InputError(
            f"model.xlstm.slstm_at names blocks {outside}, but the {config.num_blocks} blocks count "
            "from 0; remove them or raise num_blocks"
        )


def _check_counts(config: XLSTMConfig) -> None:
    for name in ("embedding_dim", "num_blocks", "context_length"):
        if getattr(config, name) < 1:
            raise InputError(f"model.xlstm.{name} is {getattr(config, name)}; it must be at least 1")
    if not 0.0 <= config.dropout < 1.0:
        raise InputError(f"model.xlstm.dropout is {config.dropout}; it must be at least 0 and below 1")


def _package_config(config: XLSTMConfig) -> "xLSTMBlockStackConfig":
    # Imported here: a training with nn.LSTM needs no xlstm package.
    from xlstm import (
        FeedForwardConfig,
        mLSTMBlockConfig,
        mLSTMLayerConfig,
        sLSTMBlockConfig,
        sLSTMLayerConfig,
        xLSTMBlockStackConfig,
    )

    mlstm = mLSTMLayerConfig(
        conv1d_kernel_size=config.conv_kernel,
        qkv_proj_blocksize=config.qkv_block_size,
        num_heads=config.num_heads,
        proj_factor=config.mlstm_proj_factor,
    )
    slstm = sLSTMLayerConfig(
        backend=config.slstm_backend,
        num_heads=config.num_heads,
        conv1d_kernel_size=config.conv_kernel,
    )
    feedforward = FeedForwardConfig(proj_factor=config.slstm_proj_factor, act_fn="gelu")
    return xLSTMBlockStackConfig(
        mlstm_block=mLSTMBlockConfig(mlstm=mlstm),
        slstm_block=sLSTMBlockConfig(slstm=slstm, feedforward=feedforward),
        context_length=config.context_length,
        num_blocks=config.num_blocks,
        embedding_dim=config.embedding_dim,
        dropout=config.dropout,
        slstm_at=list(config.slstm_at),
    )


def _package_stack(config: XLSTMConfig) -> nn.Module:
    from xlstm import xLSTMBlockStack

    if config.slstm_at and config.slstm_backend == "cuda":
        _check_cuda_backend()
    return xLSTMBlockStack(_package_config(config))


def _check_cuda_backend() -> None:
    remedy = "set slstm_backend: vanilla, or model.cell: fast, which needs no kernel build"
    if not torch.cuda.is_available():
        raise InputError(f"slstm_backend 'cuda' needs an NVIDIA GPU and none is visible; {remedy}")
    capability = torch.cuda.get_device_capability()
    if capability < (8, 0):
        found = ".".join(map(str, capability))
        raise InputError(f"slstm_backend 'cuda' needs compute capability 8.0, this GPU has {found}; {remedy}")


def _slstm_block(config: XLSTMConfig, index: int) -> SLSTMBlock:
    return SLSTMBlock(
        config.embedding_dim,
        config.num_heads,
        kernel=config.conv_kernel,
        expanded=widened(config.embedding_dim, config.slstm_proj_factor),
        dropout=config.dropout,
        block_index=index,
        num_blocks=config.num_blocks,
    )


def _fast_stack(config: XLSTMConfig) -> BlockStack:
    inner = widened(config.embedding_dim, config.mlstm_proj_factor)
    if inner // config.num_heads % config.qkv_block_size:
        raise InputError(
            f"the mLSTM's heads are {inner // config.num_heads} channels wide, which blocks of "
            f"qkv_block_size {config.qkv_block_size} do not fill; choose another size, or "
            "model.cell: sync_free"
        )

    def mlstm_block() -> MLSTMBlock:
        return MLSTMBlock(
            config.embedding_dim,
            config.num_heads,
            inner=inner,
            kernel=config.conv_kernel,
            block=config.qkv_block_size,
            dropout=config.dropout,
            num_blocks=config.num_blocks,
        )

    blocks = [
        _slstm_block(config, index) if index in config.slstm_at else mlstm_block()
        for index in range(config.num_blocks)
    ]
    return BlockStack(blocks, config.embedding_dim)


def _sync_free_stack(config: XLSTMConfig) -> BlockStack:
    from copy import deepcopy

    from xlstm import mLSTMBlock

    package = _package_config(config)
    inner = widened(config.embedding_dim, config.mlstm_proj_factor)
    blocks: list[nn.Module] = []
    for index in range(config.num_blocks):
        if index in config.slstm_at:
            blocks.append(_slstm_block(config, index))
            continue
        # A copy each: the package's blocks keep a reference to the configuration they were built from.
        block = mLSTMBlock(deepcopy(package.mlstm_block))
        block.xlstm.conv1d = CausalConv(inner, config.conv_kernel)
        blocks.append(block)
    return BlockStack(blocks, config.embedding_dim)
