"""Several ranks train as one, and how far that scales; under torchrun, or started by pytest itself."""

from dataclasses import replace

import pytest
import torch

from social_xlstm.train.distributed import World
from tests.perf.contract import both
from tests.perf.second_process import join_world, mean_gradients
from tests.perf.sizes import SIZES
from tests.perf.subject import a_batch, training
from tests.perf.switches import sabotage_of

# Ranks that do half of their work in vain reach 67 %. On a CPU, and where cards are emulated, they share its
# cores with whatever else runs: there the gradient is judged, and the efficiency only told.
_LEAST, _TOLD = "75 %", "5 %"


@pytest.mark.multi_gpu(2)
@pytest.mark.perf(max_rank_skew="90 %")
def test_ranks_train_as_one_and_scale(perf, request):
    """Shares of one batch give its gradient; the same batch takes all ranks less time than one."""
    is_card = perf.device.startswith("cuda")
    size = SIZES["several ranks"].on("cuda" if is_card else "cpu")
    joined = join_world(World(perf.rank, perf.world_size, perf.rank), perf.device, size=size)
    if perf.has_values:
        expected, found = mean_gradients(training(perf.device, size)), mean_gradients(joined)
        assert expected.keys() == found.keys()
        for name in expected:
            torch.testing.assert_close(expected[name], found[name], rtol=1e-3, atol=1e-6, msg=name)
    sabotage = sabotage_of(request.config.getoption("--perf-sabotage"), "O25")

    def build(world):
        shared = join_world(World(world.rank, world.size, world.rank), perf.device, size=size)
        whole = replace(shared, batch=a_batch(size, perf.device))  # what a rank does that shares nothing
        return {"": shared.step, "whole": whole.step, "half": both(whole.step, shared.step)}[sabotage]

    least = _LEAST if is_card and perf.has_values else _TOLD
    perf.scaling(build, samples_per_step=size.windows, mode="strong", min_scaling_efficiency=least)
