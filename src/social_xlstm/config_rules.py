"""Refuse configuration values that have the right type and still cannot work."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from social_xlstm.config import Config

_LARGEST = 2**31 - 1  # sizes beyond it overflow somewhere below us, with a worse message
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words and as a question."""

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
