"""CONTRIBUTING's recipes: their steps, and no others, are followed in a copy of the package, and it works."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import perfsuite

PACKAGE = Path(perfsuite.__file__).parent

DEVICE = '''
from perfsuite import Device, DeviceFacts, Timing


class Acme(Device):
    """A whole vendor's device, by public names alone: its clock is a counter."""

    name = "acme:1"
    is_accelerator = True
    min_seconds = 0.0

    def __init__(self):
        self.clock = 0.0
        self.figures = {"utilization": 0.9, "peak_memory": 2.0**30}

    def facts(self):
        return DeviceFacts("acme", "Acme One", "a counter")

    def now(self):
        return self.clock

    def start(self):
        return Window(self)

    def step(self, seconds=0.01):
        self.clock += seconds


class Window:
    def __init__(self, device):
        self.device, self.marks = device, [device.now()]

    def mark(self):
        self.marks.append(self.device.now())

    def known(self):
        return [after - before for before, after in zip(self.marks, self.marks[1:])]

    def stop(self):
        return Timing(tuple(self.known()), self.marks[-1] - self.marks[0], dict(self.device.figures))

    def close(self):
        pass


DEVICE = Acme()
'''
DOOR = """
def pytest_perf_device(config, name):
    return DEVICE if name.startswith("acme") else None
"""
TEST = """
import pytest
from {home} import DEVICE

@pytest.mark.gpu
def test_step(perf):
    assert perf.device_name == "acme:1"
    perf(DEVICE.step, samples_per_step=8, {limits})
"""


class Project:
    """A project, a copy of the package to follow a recipe in, and pytest in a separate process."""

    def __init__(self, path):
        self.path = path
        self.package = path / "site" / "perfsuite"

    def copy_package(self):
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def insert(self, name, before, row):
        """Add a row to a table of the package, before one that is there."""
        path = self.package / name
        text = path.read_text()
        assert 1 == text.count(before), f"{name} no longer has its row {before!r}"
        path.write_text(text.replace(before, f"{row}{before}"))

    def run(self, *arguments):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--perf-device=acme:1"]
        sessions = ["--perf-sessions=1", "--perf-confirm=0"]
        return subprocess.run(
            [*command, *sessions, *arguments],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": str(self.path / "site")},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def gates(project):
    """Measure, store, measure again slower: every stage must treat the device like a built-in one."""
    stored = project.run("--save-baseline")
    assert 0 == stored.returncode, stored.stdout
    assert "perfsuite: acme:1 (Acme One), clock: a counter" in stored.stdout
    (path,) = (project.path / "baselines").rglob("*.json")
    assert path.parts[-3].startswith("acme_acme-one")
    assert 0 == project.run("--perf").returncode
    test = project.path / "test_it.py"
    test.write_text(test.read_text().replace("perf(DEVICE.step", "perf(lambda: DEVICE.step(0.02)"))
    slower = project.run("--perf")
    assert 1 == slower.returncode
    assert "step time 20 ms is 100.0 % above the baseline 10 ms" in slower.stdout


def test_a_vendor_is_one_folder(project):
    """A folder in devices/ with a Device and a KIND, and no other file of the package."""
    project.copy_package()
    project.write(
        "site/perfsuite/devices/acme/__init__.py",
        DEVICE.replace(
            "from perfsuite import",
            "from perfsuite.devices.protocol import DeviceKind\nfrom perfsuite import",
        )
        + "def open_acme(which, root):\n    return DEVICE if which == '1' else None\n"
        + 'KIND = DeviceKind("acme", ("acme:N",), open_acme, count=lambda: 1)\n',
    )
    project.write("test_it.py", TEST.format(home="perfsuite.devices.acme", limits="min_utilization='85 %'"))
    gates(project)
    unknown = project.run("--perf", "--perf-device=acme:7")
    assert "unknown device 'acme:7'; known: auto, cpu, acme:N, cuda, cuda:N" in unknown.stderr


def test_a_vendor_can_come_from_outside(project):
    """A conftest adds the same device through the hook; perfsuite itself is not changed."""
    project.write("conftest.py", DEVICE + DOOR)
    project.write("test_it.py", TEST.format(home="conftest", limits="min_utilization='85 %'"))
    gates(project)


def test_what_the_hook_returns_must_be_a_device(project):
    """Reported with the remedy, before anything is measured."""
    project.write("conftest.py", "DEVICE = object()\n" + DOOR)
    project.write("test_it.py", TEST.format(home="conftest", limits=""))
    ran = project.run("--perf")
    assert 4 == ran.returncode
    message = "acme:1: pytest_perf_device returned a object, which is not a perfsuite.Device; derive"
    assert message in ran.stderr


def test_a_metric_is_one_row_and_the_device_that_measures_it(project):
    """Its limit, its stored form, its gate, its message and its JSON follow."""
    project.copy_package()
    project.insert(
        "metrics.py",
        '    Metric("kernel_busy",',
        '    Metric("energy", "energy per step", Unit.RATIO, False, tolerance=Tolerance(0.1), '
        "gated_kinds=_ALL_KINDS),\n",
    )
    project.write("conftest.py", DEVICE.replace('{"utilization"', '{"energy": 7.0, "utilization"') + DOOR)
    project.write("test_it.py", TEST.format(home="conftest", limits="max_energy=8"))
    assert 0 == project.run("--save-baseline", "--perf-json=run.json").returncode
    (path,) = (project.path / "baselines").rglob("*.json")
    stored = json.loads(path.read_text())["readings"]["step"]["metrics"]["energy"]
    assert {"value": 7.0, "unit": "ratio", "higher_is_better": False} == stored
    (entry,) = json.loads((project.path / "run.json").read_text())["benchmarks"]
    assert 7.0 == entry["extra_info"]["perfsuite"]["metrics"]["energy"]["value"]
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace('"energy": 7.0', '"energy": 9.0'))
    worse = project.run("--perf").stdout
    assert "energy per step 9.00× is above the 8.00× expected by the perf call" in worse
    assert "energy per step 9.00× is 28.6 % above the baseline 7.00×" in worse
    conftest.write_text(conftest.read_text().replace('"energy": 9.0, ', ""))
    assert (
        "energy per step was not measured, but the perf call expects at most 8.00×"
        in project.run("--perf").stdout
    )


def test_an_output_is_one_option_and_one_row(project):
    """The option says that it writes, the row how; fresh processes leave it out by themselves."""
    project.copy_package()
    project.insert(
        "plugin/options.py",
        '    Option("--perf-html"',
        '    Option("--perf-csv", "write all readings as comma-separated values", "PATH", writes=True),\n',
    )
    project.insert(
        "plugin/outputs.py",
        '    "perf_html": _page,',
        '    "perf_csv": lambda run, path, shown: '
        'path.write_text(run.results[0].readings[0].name) and f"written to {shown}",\n',
    )
    project.write("conftest.py", DEVICE + DOOR)
    project.write("test_it.py", TEST.format(home="conftest", limits=""))
    ran = project.run("--save-baseline", "--perf-sessions=2", "--perf-csv=out.csv")
    assert 0 == ran.returncode, ran.stdout
    assert "written to out.csv" in ran.stdout
    assert "step" == (project.path / "out.csv").read_text()
    assert "pytest --save-baseline --perf-csv" not in ran.stdout
