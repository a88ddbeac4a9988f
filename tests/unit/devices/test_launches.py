"""What operators launch on CUDA: the cases behind the rules, read off torch on an emulated card."""

import pytest
import torch

from perfsuite.devices.launches import cut, work_of
from perfsuite.devices.work import Call, Work, copy, is_flat

aten = torch.ops.aten


def work(operator, *args, **kwargs):
    result = operator(*args, **kwargs)
    outputs = [part for part in (result if isinstance(result, tuple) else (result,)) if part is not None]
    return work_of(Call(operator.__name__, args, kwargs, outputs))


@pytest.mark.parametrize(
    ("launches", "sizes", "most"),
    [
        (0, [], 2),
        (0, [0, 0], 2),
        (1, [1, 1], 2),
        (2, [1, 1, 1], 2),
        (1, [65_536 * 2_240], 2),
        (2, [65_536 * 2_240 + 1], 2),
        (3, [65_536 * 2_240 * 2 + 1, 1], 2),
        (2, [65_536 * 2_239, 65_536, 1], 9),
    ],
)
def test_lists_are_cut_by_tensors_and_by_chunks(launches, sizes, most):
    assert launches == cut(sizes, most)


def test_a_launch_takes_fewer_tensors_the_more_lists_there_are():
    """770 in one list, 672 with a number each, 448 in two, 336 in three."""
    tensors = [torch.zeros(1) for _ in range(771)]

    def launches(name, count, lists, *rest):
        return work_of(Call(name, [*[tensors[:count]] * lists, *rest], {}, ())).kernels

    assert (1, 2) == tuple(launches("_foreach_mul_", count, 1, 2.0) for count in (770, 771))
    assert (1, 2) == tuple(launches("_foreach_div_", count, 1, [2.0] * count) for count in (672, 673))
    assert (1, 2) == tuple(launches("_foreach_add_", count, 2) for count in (448, 449))
    assert (1, 2) == tuple(launches("_foreach_add", count, 2) for count in (336, 337))
    assert (1, 2) == tuple(launches("_fused_adam_", count, 5) for count in (252, 253))
    assert 3 == launches("_foreach_norm", 4, 1)


@pytest.mark.parametrize(
    ("expected", "tensor", "like"),
    [
        (True, torch.zeros(3, 4), torch.zeros(3, 4)),
        (True, torch.zeros(3, 4).T, torch.zeros(3, 4).T),
        (False, torch.zeros(3, 4).T, torch.zeros(4, 3)),
        (False, torch.zeros(3, 8)[:, ::2], torch.zeros(3, 8)[:, ::2]),
        (True, torch.zeros(3, 8)[:1], torch.zeros(1, 8)),
        (False, torch.zeros(1).expand(4), torch.zeros(4)),
    ],
)
def test_memory_that_lies_alike_is_copied_without_a_kernel(expected, tensor, like):
    assert expected == is_flat(tensor, like)
    assert (Work(0, 1) if expected else Work(1)) == copy(tensor, like)


@pytest.mark.parametrize(
    ("expected", "call"),
    [
        (Work(0, 1), (aten.clone, torch.zeros(2, 3))),
        (Work(0), (aten.mul, torch.zeros(0, 3), 2.0)),
        (Work(0, 1), (aten.pow, torch.zeros(4), 1.0)),
        (Work(1), (aten.pow, torch.zeros(4), 2)),
        (Work(1, 1), (aten.select_backward, torch.zeros(3), [2, 3], 0, 1)),
        (Work(2), (aten.select_backward, torch.zeros(2), [2, 3], 1, 0)),
        (Work(2), (aten.slice_backward, torch.zeros(2, 2), [2, 3], 1, 1, 3, 1)),
        (Work(2), (aten.constant_pad_nd, torch.zeros(2, 2), [1, 0])),
        (Work(1), (aten.constant_pad_nd, torch.zeros(2, 2), [-1, 0])),
        (Work(1, 1), (aten.masked_fill, torch.zeros(2), torch.zeros(2, dtype=torch.bool), 0.0)),
        (Work(1), (aten.addmm, torch.zeros(3), torch.zeros(2, 4), torch.zeros(4, 3))),
        (Work(2), (aten.addmm, torch.zeros(1), torch.zeros(2, 4), torch.zeros(4, 1))),
        (Work(2, 0, 512), (aten.mm, torch.zeros(2, 8)[:, ::2], torch.zeros(4, 3))),
        (Work(1, 1), (aten.baddbmm, torch.zeros(2, 3, 3), torch.zeros(2, 3, 4), torch.zeros(2, 4, 3))),
        (Work(2), (aten.cumsum, torch.zeros(5), 0)),
        (Work(1), (aten.cumsum, torch.zeros(5, 5), 0)),
        (Work(2, 0, 512), (aten.sum, torch.zeros(5, dtype=torch.bool))),
        (Work(2, 0, 512), (aten.mse_loss, torch.zeros(5), torch.zeros(5))),
        (Work(1), (aten.mse_loss, torch.zeros(5), torch.zeros(5), 0)),
        (Work(0, 1), (aten.cat, [torch.zeros(5)])),
        (Work(2), (aten.cat, [torch.zeros(1)] * 129)),
    ],
)
def test_kernels_copies_and_scratch(expected, call):
    assert expected == work(*call)


@pytest.mark.parametrize(
    ("scratch", "shape", "dims"),
    [
        (8_388_608 + 512, (4096, 256), [0]),
        (33_554_432 + 512, (4096, 1024), [0]),
        (1_024, (4096, 256), None),
        (0, (512, 64), [0]),
        (0, (4096, 256), [1]),
    ],
)
def test_a_large_reduction_takes_memory_for_its_parts(scratch, shape, dims):
    """As the allocator showed it for sums over rows, columns and everything."""
    given = (torch.zeros(shape),) if dims is None else (torch.zeros(shape), dims)
    assert scratch == work(aten.sum, *given).scratch_bytes
