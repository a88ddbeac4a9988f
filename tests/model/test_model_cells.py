"""Stacks that cannot be built are refused with the key to change, before anything is compiled."""

import pytest
import torch

from social_xlstm.config import XLSTMConfig
from social_xlstm.errors import InputError
from social_xlstm.model.cells import build_stack


@pytest.mark.parametrize("cell", ["package", "sync_free", "fast", "lstm"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_dim": 0}, "embedding_dim is 0"),
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"context_length": 0}, "context_length is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_impossible_sizes_are_refused_by_every_cell(cell, change, message):
    """Sizes below one and a dropout of everything are input errors, named by their key."""
    with pytest.raises(InputError, match=message):
        build_stack(XLSTMConfig(**change), cell)


@pytest.mark.parametrize("cell", ["package", "sync_free", "fast"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_dim": 30}, "does not split into 4 heads"),
        ({"embedding_dim": 4}, "does not split into 4 heads"),
        ({"slstm_at": (6,)}, r"slstm_at names blocks \[6\]"),
        ({"slstm_at": (-1,)}, r"slstm_at names blocks \[-1\]"),
        ({"qkv_block_size": 7}, "not a multiple of qkv_block_size 7"),
        ({"conv_kernel": 1}, "conv_kernel is 1"),
        ({"mlstm_proj_factor": 0.0}, "must be positive"),
    ],
)
def test_stacks_that_do_not_fit_together_are_refused(cell, change, message):
    """What the package would answer with an assertion is an input error that names the key."""
    with pytest.raises(InputError, match=message):
        build_stack(XLSTMConfig(**change), cell)


def test_an_unknown_cell_is_refused_with_the_known_ones():
    """The message lists the choices."""
    with pytest.raises(InputError, match="choose package, sync_free, fast or lstm"):
        build_stack(XLSTMConfig(), "gru")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_cuda_backend_without_a_gpu_is_refused_before_it_builds():
    """No compiler runs and the remedy is named."""
    with pytest.raises(InputError, match=r"model\.cell: fast"):
        build_stack(XLSTMConfig(slstm_backend="cuda"), "package")


def test_one_layer_of_lstm_builds_without_a_warning():
    """nn.LSTM warns about dropout without a second layer; we do not ask for it."""
    assert 0.0 == build_stack(XLSTMConfig(8, 1, (), dropout=0.3), "lstm").lstm.dropout
    assert 0.3 == build_stack(XLSTMConfig(8, 2, (), dropout=0.3), "lstm").lstm.dropout
