"""Social pooling in use: gradients, learnt lengths, number formats, directions, compilation, refusals."""

import itertools
import math

import pytest
import torch

from social_xlstm.config import PoolingConfig
from social_xlstm.errors import InputError
from social_xlstm.model.neighbours import find_neighbours
from social_xlstm.model.pooling import SocialPooling
from tests.model.pooling_cases import LEARNT, MAXIMA, MEANS, every, pooling, same, states, town


@every(MEANS + LEARNT + MAXIMA)
def test_gradients_are_the_numerical_ones(form):
    """Autograd agrees with finite differences, for the states and for a learnt σ, R or ε."""
    module = pooling(town(6, size=1500.0), **form)
    h = states(6, windows=1, width=2).requires_grad_()
    assert torch.autograd.gradcheck(module, (h,))
    if module.log_scale is not None:

        def of_scale(scale):
            return torch.func.functional_call(module, {"log_scale": scale}, (h.detach(),))

        assert torch.autograd.gradcheck(
            of_scale, (torch.tensor(0.2, dtype=torch.float64, requires_grad=True),)
        )


@every(LEARNT)
@pytest.mark.parametrize("log_scale", [-12.0, -0.5, 0.5, 12.0])
def test_a_learnt_length_never_breaks_pooling(form, log_scale):
    """Dense and sparse agree and stay finite however far the length is driven."""
    module, other = (pooling(town(), **{**form, "sparse": sparse}) for sparse in (False, True))
    for each in (module, other):
        torch.nn.init.constant_(each.log_scale, log_scale)
    assert module(states()).isfinite().all()
    assert same(module(states()), other(states()))


def test_a_very_short_learnt_length_sees_the_nearest_neighbour():
    """The limit of σ → 0 is the nearest neighbour, not «no neighbours» by underflow."""
    module = pooling(torch.tensor([[0.0, 0.0], [900.0, 0.0], [950.0, 0.0]]), learnable=True)
    torch.nn.init.constant_(module.log_scale, -5.0)
    h = states(3)
    assert same(h[:, 1], module(h)[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_neighbours_do_not_depend_on_autocast(dtype):
    """Lists and weights built and used under autocast are those built without it, to the last bit."""
    positions = town(60, size=40_000.0) + 4e6
    plain = SocialPooling(PoolingConfig(), positions)
    h = states(60).float()
    expected = plain(h)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        inside = SocialPooling(PoolingConfig(), positions)
        actual = inside(h)
        listed = find_neighbours(positions, 2000.0)
    reference = find_neighbours(positions, 2000.0)
    assert torch.equal(reference.sender, listed.sender)
    assert torch.equal(reference.receiver, listed.receiver)
    assert torch.equal(plain.matrix, inside.matrix)
    assert torch.equal(expected, actual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_states_are_pooled_in_full(dtype):
    """The context of half-precision states is the rounded exact mean, in the states' type."""
    h = states().to(dtype)
    exact = pooling(town())(h.double())
    assert torch.equal(exact.float().to(dtype), SocialPooling(PoolingConfig(radius=1000.0), town())(h))


def test_neighbour_search_in_blocks_is_the_whole_search(monkeypatch):
    """Searching a few receivers at a time finds the same pairs."""
    whole = find_neighbours(town(30), 1000.0)
    monkeypatch.setattr("social_xlstm.model.neighbours.PAIRS_AT_ONCE", 100)
    blocks = find_neighbours(town(30), 1000.0)
    assert torch.equal(whole.sender, blocks.sender)
    assert torch.equal(whole.receiver, blocks.receiver)
    assert torch.equal(whole.distance, blocks.distance)


def test_opposite_directions_are_no_neighbours():
    """With same_direction the nearest detector on the other carriageway is left out."""
    positions = torch.tensor([[0.0, 0.0], [0.0, 39.0], [500.0, 0.0], [500.0, 39.0]])
    h = states(4)
    context = pooling(positions, directions=("N", "S", "N", "S"), same_direction=True)(h)
    assert same(h[:, [2, 3, 0, 1]], context)


@pytest.mark.parametrize(
    ("positions", "radius", "directions", "form", "message"),
    [
        ([[0.0, 0.0], [math.nan, 1.0]], 1.0, None, {}, "1 of 2 detectors have no position"),
        ([[0.0, 0.0], [math.inf, 1.0]], 1.0, None, {}, "1 of 2 detectors have no position"),
        ([[0.0, 0.0, 0.0]], 1.0, None, {}, "shape"),
        ([[0.0, 0.0]], -1.0, None, {}, "social_pooling.radius is -1.0"),
        ([[0.0, 0.0]], math.nan, None, {}, "social_pooling.radius is nan"),
        ([[0.0, 0.0]], 1.0, None, {"same_direction": True}, "no directions"),
        ([[0.0, 0.0]], 1.0, ("N", "S"), {"same_direction": True}, "2 directions were given for 1"),
        ([[0.0, 0.0]] * 2, 1.0, ("N", None), {"same_direction": True}, "number 1"),
        ([[0.0, 0.0]], 1.0, None, {"kernel": "cubic"}, "choose uniform"),
        ([[0.0, 0.0]], 1.0, None, {"pool_type": "sum"}, "choose mean or max"),
        ([[0.0, 0.0]], 1.0, None, {"learnable": True, "pool_type": "max"}, "nothing can be learnt"),
        ([[0.0, 0.0]], 1.0, None, {"learnable": True, "kernel": "uniform"}, "nothing can be learnt"),
        ([[0.0, 0.0]], math.inf, None, {"learnable": True}, "give a finite one"),
    ],
)
def test_pooling_that_cannot_be_is_refused(positions, radius, directions, form, message):
    """Missing positions and contradictory choices end in one clear error."""
    with pytest.raises(InputError, match=message):
        pooling(torch.tensor(positions), radius, directions, **form)


def test_max_pooling_has_no_weight_matrix():
    """Asking for the weights of a maximum is an error, not a guess."""
    with pytest.raises(InputError, match="no weights"):
        pooling(town(), pool_type="max").weight_matrix()


@every(MEANS[2:4] + MAXIMA + LEARNT[:2])
def test_pooling_compiles_to_one_graph(form):
    """No form of pooling asks the data how to go on."""
    torch.compiler.reset()
    module, h = pooling(town(), **form), states()
    assert same(module(h), torch.compile(module, backend="eager", fullgraph=True)(h))


def test_only_a_learnt_length_is_a_parameter():
    """Weights follow from positions: they are neither trained nor saved."""
    for form in itertools.chain(MEANS, MAXIMA):
        assert {} == pooling(town(), **form).state_dict()
    assert ["log_scale"] == list(pooling(town(), learnable=True).state_dict())
