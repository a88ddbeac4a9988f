"""Two distributions from one repository: the plugin alone, and the training it is proved on."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = {f"perfsuite/documents/{name}.md" for name in ("diagnosis", "gpu-runners", "verdicts")}

pytestmark = pytest.mark.slow


def build(source, target, *kinds):
    """Build without an environment of its own: the backend is among the development packages."""
    kinds = [argument for kind in kinds for argument in ("-t", kind)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *kinds, "-d", str(target)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    return sorted(target.iterdir(), reverse=True)  # the .tar.gz first


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """The plugin's source distribution and wheel."""
    return build(ROOT, tmp_path_factory.mktemp("plugin"), "sdist", "wheel")


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """The training's source distribution and wheel."""
    return build(ROOT / "src", tmp_path_factory.mktemp("subject"), "sdist", "wheel")


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def installed(wheel, folder):
    """Install a wheel alone; what it depends on comes from the environment the tests run in."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet"),
            *("--no-deps", "--no-index", "--target", str(folder), str(wheel)),
        ],
        check=True,
    )
    return folder


def run(folder, *arguments, cwd):
    """Run Python on an installed wheel, away from the repository."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_plugin_is_found_among_pytests_plugins_and_brings_no_training(plugin):
    """Whoever installs the plugin finds neither a training nor its command in the environment."""
    sdist, wheel = plugin
    assert "pytest_perfsuite-0.1.0.tar.gz" == sdist.name
    assert {"perfsuite", "pytest_perfsuite-0.1.0.dist-info"} == {name.split("/")[0] for name in names(wheel)}
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.read("pytest_perfsuite-0.1.0.dist-info/entry_points.txt").decode()
        about = message_from_bytes(archive.read("pytest_perfsuite-0.1.0.dist-info/METADATA"))
    assert "[pytest11]\nperfsuite = perfsuite.plugin" == entries.strip()
    assert "Framework :: Pytest" in about.get_all("Classifier")
    assert {"Homepage", "Documentation", "Changelog", "Source", "Issues"} == {
        url.partition(",")[0] for url in about.get_all("Project-URL")
    }


def test_the_wheel_has_what_the_code_reads_beside_itself(plugin):
    """Cards, the page's assets, the documents that `explain` prints, and the mark of a typed package."""
    inside = names(plugin[1])
    assert {"perfsuite/py.typed", "perfsuite/devices/model/gpus.toml", *DOCUMENTS} <= inside
    assert {path.name for path in (ROOT / "perfsuite/report/page_assets").iterdir()} == {
        Path(name).name for name in inside if name.startswith("perfsuite/report/page_assets/")
    }


def test_the_wheel_comes_out_of_the_source_distribution_alone(plugin, tmp_path):
    """A distributor builds from it, without the repository."""
    with tarfile.open(plugin[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (wheel,) = build(tmp_path / "pytest_perfsuite-0.1.0", tmp_path / "dist", "wheel")
    assert names(plugin[1]) == names(wheel)


def test_the_installed_plugin_measures_and_explains(plugin, tmp_path):
    """Away from the repository, with nothing but its wheel."""
    folder = installed(plugin[1], tmp_path / "site")
    (tmp_path / "test_it.py").write_text("def test_it(perf): perf(lambda: sum(range(9_999)))\n")
    brief = ["--perf-device=cpu", "--perf-min-time=50 ms", "--perf-max-time=100 ms"]
    ran = run(folder, "-m", "pytest", "--perf", *brief, "test_it.py", cwd=tmp_path)
    assert "1 passed" in ran
    assert "test_it.py::test_it" in ran
    assert run(folder, "-m", "perfsuite", "explain", "data-bound", cwd=tmp_path).startswith("### data-bound")
    where = run(folder, "-c", "import perfsuite; print(perfsuite.__file__)", cwd=tmp_path)
    assert where.startswith(str(folder))


def test_the_training_is_a_distribution_of_its_own(subject, tmp_path):
    """With its command, its C sources and its default configuration; without the plugin."""
    sdist, wheel = subject
    assert "social_xlstm-0.1.0.tar.gz" == sdist.name
    assert {"social_xlstm", "social_xlstm-0.1.0.dist-info"} == {name.split("/")[0] for name in names(wheel)}
    package = ROOT / "src" / "social_xlstm"
    files = [path.relative_to(package.parent) for path in package.rglob("*") if path.is_file()]
    shipped = {str(path) for path in files if path.suffix != ".pyc"}
    assert shipped == {name for name in names(wheel) if name.startswith("social_xlstm/")}
    folder = installed(wheel, tmp_path / "site")
    run(folder, "-m", "social_xlstm", "synth", "--output", "data.h5", cwd=tmp_path)
    assert '"detectors"' in run(folder, "-m", "social_xlstm", "inspect", "data.h5", "--json", cwd=tmp_path)
