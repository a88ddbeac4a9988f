"""Attention over the steps is a weighting, and its extraction copies to the host once."""

import pytest
import torch

from social_xlstm.config import ModelConfig, PoolingConfig, XLSTMConfig
from social_xlstm.errors import InputError
from social_xlstm.model.readout import TemporalAttention, mean_importance
from social_xlstm.model.social_xlstm import SocialXLSTM
from tests.model.sync_counter import HostSyncs


@pytest.fixture
def model() -> SocialXLSTM:
    torch.manual_seed(0)
    config = ModelConfig(XLSTMConfig(8, 1, (0,), num_heads=2, dropout=0.5), attention_readout=True)
    return SocialXLSTM(config, PoolingConfig(enabled=False), n_detectors=3, n_features=2, prediction_length=3)


def test_importance_is_a_weighting_of_the_steps():
    """Weights are positive, sum to one, and the readout is the sum of states they weigh."""
    attention, states = TemporalAttention(8), torch.randn(2, 3, 5, 8)
    weights = attention.importance(states)
    assert (2, 3, 5) == weights.shape
    assert (weights > 0).all()
    assert torch.allclose(torch.ones(2, 3), weights.sum(dim=-1))
    assert torch.allclose((weights[..., None] * states).sum(dim=2), attention(states), atol=1e-6)


def test_mean_importance_is_the_mean_over_all_windows(model):
    """Batches of different size count by their windows, and dropout does not disturb."""
    features = torch.randn(7, 12, 3, 2)
    mean = mean_importance(model, features.split(3))
    expected = model.eval().importance(features).double().mean(dim=0)
    assert (3, 12) == mean.shape
    assert torch.allclose(expected, mean, atol=1e-7)


def test_extraction_leaves_the_model_as_it_was(model):
    """A model in training goes on training, also after an error."""
    mean_importance(model, [torch.randn(2, 12, 3, 2)])
    assert model.training
    with pytest.raises(InputError):
        mean_importance(model, [torch.randn(2, 12, 4, 2)])
    assert model.training


def test_extraction_does_not_wait_between_batches(model):
    """However many batches: nothing is read on the host before the end."""
    with HostSyncs() as syncs:
        mean_importance(model, [torch.randn(2, 12, 3, 2)] * 5)
    assert 0 == syncs.count


def test_extraction_copies_to_the_host_once(model, monkeypatch):
    """The only transfer is that of the final [N,T] mean."""
    copied = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copied.append(tuple(self.shape)) or original(self))
    mean_importance(model, [torch.randn(2, 12, 3, 2)] * 5)
    assert [(3, 12)] == copied


def test_no_batches_is_an_error(model):
    """A mean over nothing is refused, not nan."""
    with pytest.raises(InputError, match="no batch"):
        mean_importance(model, [])


def test_a_model_without_attention_has_no_importance():
    """Asking the last-step readout names the option."""
    config = ModelConfig(XLSTMConfig(8, 1, (0,), num_heads=2))
    model = SocialXLSTM(
        config, PoolingConfig(enabled=False), n_detectors=3, n_features=2, prediction_length=3
    )
    with pytest.raises(InputError, match="attention_readout"):
        model.importance(torch.randn(2, 12, 3, 2))
