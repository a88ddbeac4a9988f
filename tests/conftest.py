"""What several folders of tests share: the stand-in for NVIDIA's library, and the suite's options."""

import os
import signal

import pytest

from perfsuite.plugin.options import is_enabled
from tests.nvml import standin
from tests.perf.switches import add_switches


def pytest_addoption(parser):
    """Declare the options of tests/perf here: pytest asks only the conftests it loads first."""
    add_switches(parser)


def pytest_configure(config):
    """Let children hear Ctrl-C; measure with one thread: on a crowded machine threads wait for each other."""
    # A shell starts what runs in its background deaf to it, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_enabled(config) and not config.option.help:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _children_know_nothing_of_our_workers():
    """Let a pytest that a test starts be a run of its own, also where the tests share several processes."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def _locks_of_our_own(tmp_path_factory):
    """Queue neither behind a measuring run on this machine nor behind the tests of another process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFSUITE_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))
        yield


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
