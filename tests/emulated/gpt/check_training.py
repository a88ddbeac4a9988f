import pytest
from train import Training, batches


@pytest.mark.gpu
@pytest.mark.perf
def test_training(perf):
    perf.loop(batches(), Training().step, samples_per_step=8)
