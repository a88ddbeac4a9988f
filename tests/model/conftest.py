"""One thread for the model's tests: their tensors are small, and threads waiting for each other cost more."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Use one thread here and give the rest back, for whatever is measured in the same run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
