"""Several ranks train as one, and how far that scales; under torchrun, or started by pytest itself."""

import pytest
import torch

from social_xlstm.train.distributed import World
from tests.perf.second_process import SIZE, join_world, mean_gradients
from tests.perf.subject import training


@pytest.mark.multi_gpu(2)
@pytest.mark.perf(max_rank_skew="90 %")
def test_ranks_train_as_one_and_scale(perf):
    """Shares of one batch give its gradient; the same batch takes all ranks less time than one."""
    joined = join_world(World(perf.rank, perf.world_size, perf.rank), perf.device)
    expected = mean_gradients(training(perf.device, SIZE))
    found = mean_gradients(joined)
    assert expected.keys() == found.keys()
    for name in expected:
        torch.testing.assert_close(expected[name], found[name], rtol=1e-3, atol=1e-6, msg=name)

    def build(world):
        return join_world(World(world.rank, world.size, world.rank), perf.device).step

    # On a CPU the ranks share its cores with whatever else runs; on GPUs of their own ask for more.
    perf.scaling(build, samples_per_step=SIZE.windows, mode="strong", min_scaling_efficiency="5 %")
