"""Where torch chooses by device: let operators on the modelled card become those that CUDA would run.

Torch decides inside its composite operators: on the CPU attention is another kernel than on CUDA, dropout
three instead of one, and autocast has other lists. These decisions are replaced by CUDA's; the operators they
lead to and that the CPU does not have are computed by the CPU's own, in CUDA's shapes and layouts.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
_switches: Any = torch.backends.cuda
_HALVES = (torch.float16, torch.bfloat16)
_FLASH_MULTIPLE, _FLASH_WIDEST = 8, 256
_SCORES_MULTIPLE = 32  # rows of the log-sum that memory-efficient attention keeps
_MASK_MULTIPLE = 16
# In float32 under CUDA's autocast and not under the CPU's (at::autocast, AT_FORALL_FP32).
_IN_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist cdist renorm logsumexp softmax.int
    log_softmax.int cumprod cumsum prod sum sum.dim_IntList prod.dim_int
"""

IsResident = Callable[[Tensor], bool]


@contextmanager
def cuda_choices(is_resident: IsResident) -> Iterator[None]:
    """Choose as CUDA does for tensors on the card while the context lasts."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    choices = _Choices(is_resident)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel of torch's is replaced is what we want
        for key in ("CPU", "AutogradCPU"):
            library.impl("dropout", choices.dropout, key)
            library.impl("rms_norm", choices.rms_norm, key)
            library.impl("scaled_dot_product_attention", choices.attention, key)
        for name, kernel in REPLACED.items():
            library.impl(name, kernel, "CPU")
        for name in _IN_FLOAT32.split():
            library.impl(name, choices.in_float32(name), "AutocastCPU")
    try:
        yield
    finally:
        library._destroy()


class _Choices:
    """The decisions, with who is on the card."""

    def __init__(self, is_resident: IsResident) -> None:
        self._is_resident = is_resident

    def dropout(self, tensor: Tensor, p: float, train: bool) -> Any:
        """Take one kernel for numbers and mask where CUDA does."""
        if train and 0 < p < 1 and tensor.numel() and self._is_resident(tensor):
            return _aten.native_dropout(tensor, p, True)[0]
        return _as_written(_aten.dropout.default)(tensor, p, train)

    def rms_norm(
        self, tensor: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Any:
        """Take one kernel where CUDA does: weight and input of one type."""
        if self._is_resident(tensor) and (weight is None or weight.dtype == tensor.dtype):
            return _aten._fused_rms_norm(tensor, shape, weight, eps)[0]
        return _as_written(_aten.rms_norm.default)(tensor, shape, weight, eps)

    def attention(  # noqa: PLR0917  as torch calls it
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Choose flash, memory-efficient or plain attention."""
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        if not self._is_resident(query):
            run = _as_written(_aten.scaled_dot_product_attention.default)
            return run(*given, scale=scale, enable_gqa=enable_gqa)
        if not enable_gqa and _is_flash(*given):
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if not enable_gqa and _is_efficient(*given):
            mask = None if attn_mask is None else _as_bias(attn_mask, query, key)
            is_kept = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
            return _aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, is_kept, dropout_p, is_causal, scale=scale
            )[0]
        mask = attn_mask
        if mask is not None and mask.dtype == torch.bool:
            mask = _of_numbers(mask, query)
        return _aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]

    def in_float32(self, name: str) -> Callable[..., Any]:
        """Return what autocast does for an operator: half-precision arguments become float32 on the card."""
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(_aten, packet), overload or "default")

        def cast(value: Any) -> Any:
            is_half = isinstance(value, Tensor) and value.dtype in _HALVES and self._is_resident(value)
            return value.to(torch.float32) if is_half else value

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                return operator(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

        return run


def _as_written(operator: Any) -> Callable[..., Any]:
    """Return torch's own composite behind the one that stands in its place."""
    return lambda *args, **kwargs: operator._op_dk(_COMPOSITE, *args, **kwargs)


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def _is_flash(query: Tensor, key: Tensor, value: Tensor, mask: Any, _p: float, is_causal: bool) -> bool:
    return (
        _switches.flash_sdp_enabled()
        and query.dtype in _HALVES
        and query.dim() == 4
        and mask is None
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _FLASH_WIDEST
        and not (is_causal and query.shape[-2] != key.shape[-2])
        and _is_plain(query, key, value)
    )


def _is_efficient(query: Tensor, key: Tensor, value: Tensor, mask: Any, _p: float, is_causal: bool) -> bool:
    multiple = 8 if query.dtype in _HALVES else 4
    return (
        _switches.mem_efficient_sdp_enabled()
        and query.dtype in (torch.float32, *_HALVES)
        and query.dim() == 4
        and query.shape[-1] % multiple == 0
        and value.shape[-1] == query.shape[-1]  # the CPU's kernel takes no others; CUDA's would
        and not (is_causal and mask is not None)
        and not (mask is not None and mask.requires_grad)
        and _is_plain(query, key, value)
    )


def _is_plain(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether batches and heads are the same, nothing is empty, and numbers lie beside each other."""
    tensors = (query, key, value)
    return (
        query.shape[:2] == key.shape[:2] == value.shape[:2]
        and all(tensor.numel() and tensor.stride(-1) == 1 for tensor in tensors)
        and query.dtype == key.dtype == value.dtype
    )


def _flash(  # noqa: PLR0917
    query: Tensor, key: Tensor, value: Tensor, p: float, is_causal: bool, scale: float | None
) -> Any:
    width = query.shape[-1]
    missing = -width % _FLASH_MULTIPLE
    scale = 1 / math.sqrt(width) if scale is None else scale
    if missing:
        query, key, value = (_aten.pad(part, [0, missing]) for part in (query, key, value))
    out = _aten._scaled_dot_product_flash_attention(query, key, value, p, is_causal, False, scale=scale)[0]
    return out[..., :width] if missing else out


def _of_numbers(mask: Tensor, query: Tensor) -> Tensor:
    of = {"dtype": query.dtype, "device": query.device}
    return torch.where(mask, _aten.scalar_tensor(0.0, **of), _aten.scalar_tensor(-math.inf, **of))


def _as_bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        mask = _of_numbers(mask, query)
    missing = -mask.shape[-1] % _MASK_MULTIPLE
    if missing:
        mask = _aten.pad(mask, [0, missing])[..., : mask.shape[-1]]
    return mask.expand(*query.shape[:3], key.shape[2])


# What follows runs on the CPU in the place of CUDA's kernels.


def _native(  # noqa: PLR0917
    query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, scale: Any
) -> Any:
    run = _aten._scaled_dot_product_flash_attention_for_cpu
    return run(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)


def _by_rows(tensor: Tensor) -> Tensor:
    """Lay [B,H,T,E] out as CUDA's kernels do: the heads of a row beside each other."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _efficient_forward(  # noqa: PLR0917
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,  # noqa: ARG001  results without it are as good
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    out, _ = _native(query, key, value, attn_bias, is_causal, scale)
    rows = -(-query.shape[2] // _SCORES_MULTIPLE) * _SCORES_MULTIPLE if compute_log_sumexp else 0
    scores = query.new_empty((*query.shape[:2], rows), dtype=torch.float32)
    seed = torch.empty((0,), dtype=torch.long)
    return _by_rows(out), scores, seed, seed.clone()


def _efficient_backward(  # noqa: PLR0917
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,  # noqa: ARG001
    logsumexp: Tensor,  # noqa: ARG001
    philox_seed: Tensor,  # noqa: ARG001
    philox_offset: Tensor,  # noqa: ARG001
    dropout_p: float,  # noqa: ARG001
    grad_input_mask: Any,  # noqa: ARG001
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    found = _gradients(grad_out, query, key, value, attn_bias, is_causal, scale)
    return (*map(_by_rows, found), None)


def _gradients(  # noqa: PLR0917
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, scale: Any
) -> Any:
    out, scores = _native(query, key, value, mask, is_causal, scale)
    run = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    return run(gradient, query, key, value, out, scores, 0.0, is_causal, attn_mask=mask, scale=scale)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Lay values out as CUDA lays out what is like a tensor."""
    made = torch.empty_like(tensor.transpose(1, 2)).transpose(1, 2)
    return made.copy_(values)


def _flash_forward(  # noqa: PLR0917
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,
    return_debug_mask: bool = False,  # noqa: ARG001
    *,
    scale: float | None = None,
) -> Any:
    out, scores = _native(query, key, value, None, is_causal, scale)
    kept = query.new_empty(query.shape[:3], dtype=torch.float32).copy_(scores.reshape(query.shape[:3]))
    state = torch.empty((2,), dtype=torch.uint64)
    sizes = (query.shape[2], key.shape[2])
    return _like(query, out), kept, None, None, *sizes, state, torch.empty_like(state), query.new_empty((0,))


def _flash_backward(  # noqa: PLR0917
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,  # noqa: ARG001
    logsumexp: Tensor,  # noqa: ARG001
    cum_seq_q: Any,  # noqa: ARG001
    cum_seq_k: Any,  # noqa: ARG001
    max_q: int,  # noqa: ARG001
    max_k: int,  # noqa: ARG001
    dropout_p: float,  # noqa: ARG001
    is_causal: bool,
    philox_seed: Tensor,  # noqa: ARG001
    philox_offset: Tensor,  # noqa: ARG001
    *,
    scale: float | None = None,
) -> Any:
    found = _gradients(grad_out, query, key, value, None, is_causal, scale)
    return tuple(_like(tensor, part) for tensor, part in zip((query, key, value), found, strict=True))


def _log_sigmoid(tensor: Tensor) -> Any:
    """Keep the layout and no buffer, as CUDA does."""
    wide = tensor.float() if tensor.dtype in _HALVES else tensor
    found = wide.clamp(max=0) - wide.abs().neg().exp().log1p()
    return torch.empty_like(tensor).copy_(found), tensor.new_empty((0,))


def _log_sigmoid_backward(gradient: Tensor, tensor: Tensor, _buffer: Tensor) -> Tensor:
    wide = tensor.float() if tensor.dtype in _HALVES else tensor
    return torch.empty_like(gradient).copy_(gradient * wide.neg().sigmoid())


def _rms_norm(tensor: Tensor, shape: Any, weight: Tensor | None, eps: float | None) -> Any:
    dims = list(range(-len(shape), 0))
    least = torch.finfo(tensor.dtype).eps if eps is None else eps
    wide = tensor.float()
    scale = (wide.square().mean(dims, keepdim=True) + least).rsqrt()
    found = wide * scale if weight is None else wide * scale * weight
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(found), scale


def _rms_norm_backward(  # noqa: PLR0917
    gradient: Tensor, tensor: Tensor, shape: Any, scale: Tensor, weight: Tensor | None, mask: Any
) -> Any:
    dims = list(range(-len(shape), 0))
    normed = tensor.float() * scale
    weighted = gradient.float() if weight is None else gradient.float() * weight
    mixed = scale * (weighted - normed * (weighted * normed).mean(dims, keepdim=True))
    of_input = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(mixed) if mask[0] else None
    others = list(range(tensor.dim() - len(shape)))
    summed = (gradient.float() * normed).sum(others) if others else gradient.float() * normed
    return of_input, summed.to(weight.dtype) if mask[1] and weight is not None else None


REPLACED: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_efficient_attention": _efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_flash_attention": _flash_forward,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid_backward": _log_sigmoid_backward,
}
