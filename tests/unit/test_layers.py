"""The structure kept by tests: layers, sizes, options, and what an import may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import perfsuite
from perfsuite.plugin.options import OPTIONS

PACKAGE = Path(perfsuite.__file__).parent
SUBJECT = PACKAGE.parent / "src" / "social_xlstm"
MODULES = sorted(PACKAGE.rglob("*.py"))
STAGES = ("collect", "measure", "judge", "remember", "report")


def imports(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def name(path):
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_modules_are_small_and_say_what_they_are_for(path):
    """At most 250 lines, and one sentence of purpose."""
    assert len(path.read_text().splitlines()) <= 250
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_only_the_edge_knows_pytest(path):
    """The line itself can be used and tested without pytest."""
    knows = any(module.split(".")[0] in ("pytest", "_pytest") for module in imports(path))
    assert not knows or name(path).startswith("plugin/") or name(path) == "processes/ranks"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_only_devices_know_torch_and_nvml(path):
    """Everything else works on numbers."""
    knows = any(module.split(".")[0] in ("torch", "pynvml", "numpy") for module in imports(path))
    # ruptures takes arrays; the command that uses it is the one exception.
    assert not knows or name(path).startswith("devices/") or name(path) == "commands/trend"


@pytest.mark.parametrize("stage", STAGES)
def test_stages_do_not_import_each_other(stage):
    """Data flows through the plugin, not through the stages."""
    paths = [path for path in MODULES if name(path) == stage or name(path).startswith(f"{stage}/")]
    others = {f"perfsuite.{other}" for other in STAGES if other != stage}
    assert paths
    for path in paths:
        assert not others & imports(path)


def test_the_plugin_and_its_subject_do_not_know_each_other():
    """perfsuite never imports social_xlstm, nor the other way round."""
    for path in MODULES:
        assert not any(module.startswith("social_xlstm") for module in imports(path))
    for path in SUBJECT.rglob("*.py"):
        assert not any(module.startswith("perfsuite") for module in imports(path))


def test_the_set_of_options_is_frozen():
    """A new option is a decision, not an accident."""
    assert [
        "--perf",
        "--save-baseline",
        "--perf-device",
        "--baseline-dir",
        "--perf-strict",
        "--perf-json",
        "--perf-tolerance",
        "--perf-memory-tolerance",
        "--perf-min-time",
        "--perf-max-time",
        "--perf-on-invalid",
        "--perf-cooldown",
        "--perf-sessions",
        "--perf-confirm",
        "--perf-family-error",
        "--against",
        "--against-time",
        "--perf-rank-timeout",
        "--perf-history",
        "--perf-explain",
        "--perf-html",
        "--perf-export",
        "--perf-patch",
        "--perf-lock-timeout",
    ] == [option.flag for option in OPTIONS]


def test_loading_the_plugin_imports_nothing_heavy():
    """Installing perfsuite must not make every pytest run import torch."""
    code = (
        "import sys, perfsuite.plugin; print([m for m in ('torch', 'numpy', 'pynvml') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]\n" == ran.stdout


def test_only_the_light_modules_are_loaded_without_perf():
    """What is not needed is not loaded: the measuring run comes with --perf only."""
    code = "import sys, perfsuite.plugin; print(sorted(m for m in sys.modules if m.startswith('perfsuite')))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = ["perfsuite", *(f"perfsuite.{m}" for m in ("plugin", "plugin.options"))]
    assert f"{expected}\n" == ran.stdout
