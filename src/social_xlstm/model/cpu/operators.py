"""The fast cells' blocks in C: what autograd calls, and when."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from social_xlstm.model.cpu import library

# Shapes: M sequences, T steps, E width. Every block maps [M,T,E] to [M,T,E] with its residual; a mask is what
# dropout multiplies by. Weights are the modules' own, in the order of the C structures, the norm's [E] first.
# With one more dimension in front of all of them, G groups with weights of their own run in one call.

_MOST_STEPS = 128  # a sequence's scores, T×T per head, should stay in cache
_WIDEST_VECTOR = 16  # floats; widened layers are rows of whole vectors in C


def applies(x: Tensor, weights: Sequence[Tensor], widened: int) -> bool:
    """Return whether the C library may take this input into a block with layers of `widened` channels."""
    return (
        (_may_be_traced(x) if torch.compiler.is_compiling() else _may_be_called(x))
        and x.dtype == torch.float32
        and x.dim() in (3, 4)
        and 0 < x.shape[-2] <= _MOST_STEPS
        and x.numel() > 0
        # C does not check sizes; what does not fit is left to torch, whose error says what is wrong.
        and weights[0].shape == x.shape[:-3] + x.shape[-1:]
        and widened % _WIDEST_VECTOR == 0
        and all(type(w) in (Tensor, nn.Parameter) and w.dtype == torch.float32 for w in weights)
        and _available()
    )


def _may_be_called(x: Tensor) -> bool:
    """Return whether C may run in place of torch's operators: nothing transforms or watches them."""
    return (
        x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        # What torch's own autograd functions check: under vmap and its kin they cannot run as they are.
        and not torch._C._are_functorch_transforms_active()
        # A modelled card or a counter that watches operators must get those that another device would run.
        and not torch._C._len_torch_dispatch_stack()
    )


def _may_be_traced(x: Tensor) -> bool:
    """Return whether a traced graph may hold the block as one operator; an exported one may run anywhere."""
    return (
        x.device.type == "cpu"
        and not torch.compiler.is_exporting()
        and not torch.is_autocast_enabled("cpu")
        and _no_transform()
    )


# Evaluated while tracing, not traced.
@torch.compiler.assume_constant_result
def _no_transform() -> bool:
    return not torch._C._are_functorch_transforms_active()


@torch.compiler.assume_constant_result
def _available() -> bool:
    return library.library() is not None


def mask(dropout: nn.Dropout, x: Tensor) -> Tensor | None:
    """Return what this dropout multiplies by, drawn as it would draw it; None where it does nothing."""
    if not dropout.training or dropout.p == 0:
        return None
    return dropout(torch.ones_like(x, memory_format=torch.contiguous_format))


def run(name: str, x: Tensor, mask: Tensor | None, sizes: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """Run the block `name` (mlstm, slstm or ffn); sizes are those of its C structure behind M and T."""
    if torch.compiler.is_compiling():
        return _block(name, x, mask, list(sizes), list(weights))
    return _Pass.apply(name, x, mask, tuple(sizes), *weights)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str, x: Tensor, mask: Tensor | None, sizes: tuple[int, ...], *weights: Tensor
    ) -> Tensor:
        x, weights = x.contiguous(), tuple(weight.contiguous() for weight in weights)
        output = torch.empty_like(x)
        _call(f"{name}_forward", sizes, weights, x, mask, output)
        ctx.save_for_backward(x, mask, *weights)
        ctx.name, ctx.sizes = name, sizes
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        x, mask, *weights = ctx.saved_tensors
        dx, *gradients = _gradients(ctx.name, dout, x, mask, weights, sizes=ctx.sizes)
        return None, dx, None, None, *gradients


def _gradients(
    name: str,
    dout: Tensor,
    x: Tensor,
    mask: Tensor | None,
    weights: Sequence[Tensor],
    *,
    sizes: Sequence[int],
) -> list[Tensor]:
    x, weights = x.contiguous(), [weight.contiguous() for weight in weights]
    dx, gradients = torch.empty_like(x), [torch.empty_like(weight) for weight in weights]
    _call(f"{name}_backward", sizes, weights, x, mask, dout.contiguous(), dx, _addresses(gradients))
    return [dx, *gradients]


# The same as operators: torch.compile keeps them in its graph as they are, where the formulas of six blocks
# would become some hundred kernels, each to be compiled.


@torch.library.custom_op("social_xlstm::block", mutates_args=())
def _block(
    name: str, x: Tensor, mask: Tensor | None, sizes: Sequence[int], weights: Sequence[Tensor]
) -> Tensor:
    x, output = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    _call(f"{name}_forward", sizes, [weight.contiguous() for weight in weights], x, mask, output)
    return output


@_block.register_fake
def _(_name: str, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_block_gradients = torch.library.custom_op("social_xlstm::block_gradients", _gradients, mutates_args=())


@_block_gradients.register_fake
def _(*given: Any, **_: Any) -> list[Tensor]:
    _, _, x, _, weights = given
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, *weights)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch names them
    ctx.name, x, mask, ctx.sizes, weights = inputs
    ctx.save_for_backward(x, mask, *weights)


def _back(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    x, mask, *weights = ctx.saved_tensors
    dx, *gradients = _block_gradients(ctx.name, dout, x, mask, weights, sizes=ctx.sizes)
    return None, dx, None, None, gradients


_block.register_autograd(_back, setup_context=_keep)


def _addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


class _Groups(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_long),
        ("weights", ctypes.c_long),
        ("sizes", ctypes.POINTER(ctypes.c_long)),
    )


def _call(function: str, sizes: Sequence[int], weights: Sequence[Tensor], x: Tensor, *rest: Any) -> None:
    loaded, (_, direction) = library.library(), function.split("_")
    count = x.shape[0] if x.dim() == 4 else 1
    each = [weight.numel() // count for weight in weights]
    groups = _Groups(count, len(weights), (ctypes.c_long * len(each))(*each))
    shape = (ctypes.c_long * (2 + len(sizes)))(*x.shape[-3:-1], *sizes)
    given = [ctypes.c_void_p(r.data_ptr()) if isinstance(r, Tensor) else r for r in (x, *rest)]
    block, for_groups = getattr(loaded, function), getattr(loaded, f"groups_{direction}")
    threads = torch.get_num_threads()
    failed = for_groups(block, ctypes.byref(groups), shape, _addresses(weights), *given, threads)
    if failed:
        raise MemoryError(f"no memory for the buffers of {function} at shape {tuple(x.shape)}")
