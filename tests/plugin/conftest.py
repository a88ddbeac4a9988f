"""A scratch project with a scripted device, so that plugin tests need neither clock nor GPU."""

import pytest

import perfsuite.plugin.against
import perfsuite.plugin.confirm

# pytester forgets modules that a run imported, but not where they hang on their package: load them first.
import perfsuite.plugin.finish
import perfsuite.plugin.roles
import perfsuite.plugin.run  # noqa: F401

CONFTEST = """
from perfsuite.devices.scripted import ScriptedDevice
DEVICE = ScriptedDevice({arguments})
def pytest_perf_device(config, name):
    return DEVICE if name == "scripted" else None
"""


class Project:
    """Write tests, run pytest on them with the scripted device."""

    def __init__(self, pytester):
        self.pytester = pytester
        self.path = pytester.path
        self.script()
        pytester.makeini(
            "[pytest]\nperf_device = scripted\nperf_sessions = 1\nperf_confirm = 0\n"
            "addopts = -p no:cacheprovider -p no:hypothesispytest"
        )

    def script(self, arguments=""):
        self.pytester.makeconftest(CONFTEST.format(arguments=arguments))

    def test(self, body, marker="", name="test_it", signature="perf"):
        """Write one performance test: `spend(seconds)` passes scripted time."""
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        mark = f"@pytest.mark.perf({marker})\n" if marker else ""
        self.pytester.makepyfile(
            test_it=f"import pytest\nfrom conftest import DEVICE\nspend = DEVICE.spend\n"
            f"{mark}def {name}({signature}):\n{lines}\n"
        )

    def run_apart(self, *arguments):
        """Run in a process of its own: pytester forgets modules, and torch must not be loaded twice."""
        return self.pytester.runpytest_subprocess(*arguments)

    def run(self, *arguments):
        return self.pytester.runpytest_inprocess(*arguments)

    @property
    def stored(self):
        return sorted(path.relative_to(self.path) for path in self.path.glob("baselines/**/*.json"))


@pytest.fixture
def project(pytester):
    return Project(pytester)
