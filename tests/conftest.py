"""What several folders of tests share: the stand-in for NVIDIA's library and the bindings that run on it."""

import pytest

from tests.nvml import standin


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The folder of a complete stand-in."""
    try:
        return standin.build(tmp_path_factory.mktemp("nvml"))
    except standin.Impossible as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def old_binding(tmp_path_factory):
    """The folder of nvidia-ml-py 12."""
    try:
        return standin.install_old_binding(tmp_path_factory.mktemp("binding"))
    except standin.Impossible as why:
        pytest.skip(str(why))


@pytest.fixture(params=["nvidia-ml-py 13", "nvidia-ml-py 12"])
def binding(request):
    """Each binding in turn; None is the installed one."""
    return request.getfixturevalue("old_binding") if request.param.endswith("12") else None
