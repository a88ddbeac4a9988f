"""Social pooling does what its definition says, in every form it can take."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.pooling_cases import LEARNT, MAXIMA, MEANS, every, pooling, same, states, town


def by_loop(positions: Tensor, h: Tensor, radius: float, kernel: str, pool_type: str) -> Tensor:
    """The definition, pair by pair."""
    k = {
        "uniform": lambda d: 1.0,
        "gaussian": lambda d: math.exp(-0.5 * (d / (radius / 3)) ** 2),
        "exponential": lambda d: math.exp(-d / (radius / 3)),
        "linear": lambda d: max(0.0, 1 - d / radius),
        "inverse": lambda d: 1 / (d + 10.0),
    }[kernel]
    context = torch.zeros_like(h)
    for i in range(len(positions)):
        around = [
            (k(d), h[:, j])
            for j in range(len(positions))
            if i != j and (d := math.dist(positions[i].tolist(), positions[j].tolist())) <= radius
        ]
        if around and pool_type == "max":
            context[:, i] = torch.stack([other for _, other in around]).amax(dim=0)
        elif around:
            context[:, i] = sum(w * other for w, other in around) / sum(w for w, _ in around)
    return context


@every(MEANS + MAXIMA + LEARNT)
@pytest.mark.parametrize("seed", range(3))
def test_every_form_equals_the_loop_over_pairs(form, seed):
    """Dense, sparse and untrained learnable pooling are the definition's loop."""
    remote = torch.tensor([[9e5, 9e5]], dtype=torch.float64)
    positions, h = torch.cat([town(11, seed=seed), remote]), states(seed=seed)
    expected = by_loop(positions, h, 1000.0, form.get("kernel", "uniform"), form.get("pool_type", "mean"))
    assert same(expected, pooling(positions, **form)(h))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 15), st.integers(0, 10_000), st.floats(0.0, 4000.0), st.sampled_from(MEANS + MAXIMA))
def test_any_town_and_radius_equals_the_loop(n, seed, radius, form):
    """The loop's result holds for any number of detectors and any radius."""
    positions, h = town(n, seed), states(n, seed)
    expected = by_loop(
        positions, h, radius or 1.0, form.get("kernel", "uniform"), form.get("pool_type", "mean")
    )
    if radius == 0.0:
        expected = torch.zeros_like(h)
    assert same(expected, pooling(positions, radius, **form)(h), 1e-9)


@every(MEANS + MAXIMA + LEARNT)
def test_the_order_of_detectors_does_not_matter(form):
    """Detectors listed in another order get the same contexts in that order."""
    positions, h = town(), states()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    assert same(pooling(positions, **form)(h)[:, order], pooling(positions[order], **form)(h[:, order]))


@every(MEANS + MAXIMA + LEARNT)
def test_moving_and_turning_the_map_changes_nothing(form):
    """Only distances count: shifted and rotated positions give the same contexts."""
    positions, h = town(), states()
    turn = torch.tensor(
        [[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]], dtype=torch.float64
    )
    moved = positions @ turn.T + torch.tensor([5e5, -3e6], dtype=torch.float64)
    assert same(pooling(positions, **form)(h), pooling(moved, **form)(h), 1e-9)


@every([form for form in MEANS + MAXIMA + LEARNT if form.get("kernel") != "inverse"])
def test_map_and_radius_scale_together(form):
    """Kernels whose length is a share of R do not notice the unit (the inverse kernel's is in metres)."""
    positions, h = town(), states()
    assert same(pooling(positions, **form)(h), pooling(positions * 8, radius=8000.0, **form)(h))


@every(MEANS + MAXIMA)
def test_radius_zero_pools_nothing(form):
    """With R = 0 and detectors apart every context is exactly zero."""
    assert torch.equal(
        torch.zeros(2, 12, 3, dtype=torch.float64), pooling(town(), radius=0.0, **form)(states())
    )


@every(MEANS)
def test_radius_zero_still_pools_the_co_located(form):
    """d = 0 ≤ R = 0: two detectors at one place are neighbours."""
    h = states(3)
    context = pooling(torch.tensor([[1.0, 1.0], [1.0, 1.0], [2.0, 1.0]]), radius=0.0, **form)(h)
    assert same(torch.stack([h[:, 1], h[:, 0], 0 * h[:, 2]], dim=1), context)


@every([form for form in MEANS if form["kernel"] != "inverse"])
def test_infinite_radius_is_the_mean_of_all_others(form):
    """R = ∞ gives (Σ − h_i)/(N − 1) with every kernel whose length is a share of R."""
    h = states()
    expected = (h.sum(dim=1, keepdim=True) - h) / 11
    assert same(expected, pooling(town(), radius=math.inf, **form)(h))


@every(MEANS + MAXIMA + LEARNT)
def test_an_isolated_detector_has_zero_context_and_gives_no_gradient(form):
    """No neighbours: the context is exactly 0 and nothing flows back, not even nan."""
    positions = torch.cat([town(5, size=500.0), torch.tensor([[9e5, 9e5]], dtype=torch.float64)])
    h = states(6).requires_grad_()
    context = pooling(positions, **form)(h)
    (context[:, 5].sum() + 0 * context.sum()).backward()
    assert torch.equal(torch.zeros_like(context[:, 5]), context[:, 5])
    assert torch.equal(torch.zeros_like(h), h.grad)


@every(MEANS + MAXIMA + LEARNT)
def test_two_detectors_swap_their_states(form):
    """Of two neighbours each sees exactly the other."""
    h = states(2)
    assert same(h.flip(1), pooling(torch.tensor([[0.0, 0.0], [300.0, 400.0]]), **form)(h))


@every(MEANS + LEARNT)
def test_the_jacobian_is_the_neighbourhood(form):
    """∂c_i/∂h_j is zero for i = j and beyond R, and positive within."""
    positions = town(size=2500.0)
    module = pooling(positions, **form)
    jacobian = torch.autograd.functional.jacobian(
        lambda h: module(h[None, :, None])[0, :, 0], states()[0, :, 0]
    )
    distance = torch.cdist(positions, positions)
    near = (distance <= 1000.0) & ~torch.eye(12, dtype=torch.bool)
    assert torch.equal(near, jacobian > 0)
    assert torch.equal(near, jacobian != 0)


@every(MAXIMA)
def test_the_maximum_comes_from_the_neighbourhood(form):
    """Raising a far state or one's own changes no maximum; raising a neighbour's does."""
    positions, h = town(size=2500.0), states()
    module, near = pooling(positions, **form), torch.cdist(positions, positions) <= 1000.0
    for j in range(12):
        raised = h.clone()
        raised[:, j] += 100.0
        changed = (module(raised) != module(h)).any(dim=-1).any(dim=0)
        expected = near[:, j].clone()
        expected[j] = False
        assert torch.equal(expected, changed)


@every([form for form in MEANS if form["kernel"] != "linear"] + MAXIMA)
@pytest.mark.parametrize(("radius", "seen"), [(499.999, False), (500.0, True), (500.001, True)])
def test_the_boundary_belongs_to_the_neighbourhood(form, radius, seen):
    """d = R is a neighbour, anything farther is not."""
    h = states(2).abs() + 1
    context = pooling(torch.tensor([[0.0, 0.0], [300.0, 400.0]]), radius, **form)(h)
    assert seen == bool((context != 0).any())


def test_the_linear_kernel_is_zero_at_the_boundary():
    """(1 − d/R)₊ is 0 at d = R, and a detector with weights of 0 only has the context 0, not nan."""
    h = states(2)
    context = pooling(torch.tensor([[0.0, 0.0], [300.0, 400.0]]), 500.0, kernel="linear")(h)
    assert torch.equal(torch.zeros_like(h), context)


@every(MEANS + MAXIMA + LEARNT)
def test_a_constant_field_is_kept(form):
    """Where all detectors agree, neighbours say the same."""
    h = torch.full((1, 12, 2), 3.25, dtype=torch.float64)
    assert same(h, pooling(town(), radius=3000.0, **form)(h))


@every(MAXIMA)
def test_the_maximum_of_negative_states_is_negative(form):
    """Padding is −∞, so it never wins over a negative state."""
    h = -states().abs() - 1
    context = pooling(town(), radius=3000.0, **form)(h)
    assert (context < 0).all()


@every(MEANS)
def test_zero_states_are_counted(form):
    """A neighbour whose state is 0 still halves the mean of two equally far ones."""
    h = torch.tensor([[[9.0], [4.0], [0.0]]], dtype=torch.float64)
    context = pooling(torch.tensor([[0.0, 0.0], [100.0, 0.0], [-100.0, 0.0]]), **form)(h)
    assert same(torch.tensor([2.0], dtype=torch.float64), context[0, 0])


@every([form for form in MEANS + LEARNT if form["kernel"] != "uniform"])
def test_nearer_weighs_more(form):
    """The weights of one receiver fall with distance."""
    positions = torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 350.0], [-800.0, 0.0]])
    near, middle, far = pooling(positions, **form).weight_matrix()[0, 1:].tolist()
    assert near > middle > far > 0


@every(MEANS + MAXIMA + LEARNT)
def test_co_located_detectors_stay_finite(form):
    """Detectors at one place weigh much, but states and gradients remain finite."""
    positions = torch.cat([town(4, size=800.0)] * 2)
    h = states(8).requires_grad_()
    context = pooling(positions, **form)(h)
    context.square().sum().backward()
    assert context.isfinite().all()
    assert h.grad.isfinite().all()
