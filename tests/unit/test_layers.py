"""The structure kept by tests: layers, cycles, sizes, the set of options, and what an import may cost."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import perfsuite
from perfsuite.plugin.options import OPTIONS
from scripts import structure

PACKAGE = Path(perfsuite.__file__).parent
SUBJECT = PACKAGE.parent / "src" / "social_xlstm"
MODULES = structure.modules(PACKAGE)
GRAPH = structure.import_graph(MODULES)
FOLDERS = structure.folder_graph(GRAPH, MODULES)
SUBJECT_MODULES = structure.modules(SUBJECT)
SUBJECT_GRAPH = structure.import_graph(SUBJECT_MODULES)
SUBJECT_FOLDERS = structure.folder_graph(SUBJECT_GRAPH, SUBJECT_MODULES)

VOCABULARY = "perfsuite"
DEVICES, CUDA, MODEL, RANKS = (f"perfsuite.devices{name}" for name in ("", ".cuda", ".model", ".ranks"))
EMULATED = "perfsuite.devices.emulated"
VERBS = {f"perfsuite.{verb}" for verb in ("collect", "measure", "judge", "remember", "report")}
PROCESSES, DIAGNOSE, AGAINST = (f"perfsuite.{name}" for name in ("processes", "diagnose", "against"))
# folder → the folders it may import, whether eagerly, lazily or for types alone
LAYERS = {
    VOCABULARY: set(),
    "perfsuite.collect": {VOCABULARY},
    "perfsuite.judge": {VOCABULARY},
    "perfsuite.remember": {VOCABULARY},
    DIAGNOSE: {VOCABULARY},
    PROCESSES: {VOCABULARY},
    "perfsuite.report": {VOCABULARY, DIAGNOSE},
    AGAINST: {VOCABULARY, "perfsuite.collect", "perfsuite.judge", "perfsuite.report", PROCESSES},
    DEVICES: {VOCABULARY, PROCESSES},
    CUDA: {VOCABULARY, PROCESSES, DEVICES},
    RANKS: {VOCABULARY, PROCESSES, DEVICES},
    "perfsuite.measure": {VOCABULARY, PROCESSES, DEVICES},
    MODEL: {VOCABULARY, DEVICES, CUDA, "perfsuite.measure"},  # it brings a measurer of its own
    EMULATED: {
        VOCABULARY,
        PROCESSES,
        DEVICES,
        CUDA,
        MODEL,
        "perfsuite.measure",
    },  # the CUDA device on it, times from the model
    "perfsuite.plugin": {VOCABULARY, *VERBS, DIAGNOSE, PROCESSES, AGAINST, DEVICES, CUDA, RANKS},
    "perfsuite.commands": {VOCABULARY, *VERBS, DIAGNOSE, PROCESSES, AGAINST, DEVICES, CUDA, MODEL, EMULATED},
    "perfsuite.frameworks": {"perfsuite.plugin"},
}
# Small and used by one module or none, for a reason.
ENTRY_POINTS = {
    "perfsuite.__main__": "python -m perfsuite",
    "perfsuite.plugin.hookspecs": "pytest takes hook specifications from a module",
    "social_xlstm.__main__": "torchrun -m social_xlstm",
    "social_xlstm.cli.convert": "the command line imports a command's module by its name",
    "social_xlstm.cli.evaluate": "the same",
    "social_xlstm.cli.inspect": "the same",
    "social_xlstm.cli.synth": "the same",
    "social_xlstm.data.trial_reader": "hdf5_guard runs it as a script, in a process that may die",
}


def outside(path):
    """Return the packages a file imports that are not ours."""
    return {name.partition(".")[0] for name in structure.imports(path)}


@pytest.mark.parametrize("name", [name for name in FOLDERS if "(" not in name])
def test_folders_import_only_what_lies_below_them(name):
    """Data flows one way: a table of layers, every import counted."""
    assert FOLDERS[name] <= LAYERS[name]


def test_every_layer_is_a_folder():
    """The table speaks of folders that are there."""
    assert set(LAYERS) == {name for name in FOLDERS if "(" not in name}


def test_no_verb_imports_another():
    """collect, measure, judge, remember and report meet in plugin/ alone."""
    assert {} == {verb: FOLDERS[verb] & VERBS for verb in VERBS if FOLDERS[verb] & VERBS}


@pytest.mark.parametrize(
    "graph",
    [GRAPH, FOLDERS, SUBJECT_GRAPH, SUBJECT_FOLDERS],
    ids=["modules", "folders", "the subject's modules", "the subject's folders"],
)
def test_nothing_imports_in_a_circle(graph):
    """Neither modules nor folders, lazy and type-only imports counted."""
    assert [] == structure.cycles(graph)


def test_a_cycle_would_be_found():
    """Also a lazy one, and one between folders whose modules form none."""
    assert [["a", "b"]] == structure.cycles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    assert [] == structure.cycles({"a": {"b"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize("name", [*MODULES, *SUBJECT_MODULES])
def test_modules_tell_one_story_of_a_readable_length(name):
    """At most 400 lines and a sentence of purpose; under 60 lines only with two importers or as a door."""
    path = {**MODULES, **SUBJECT_MODULES}[name]
    text = path.read_text()
    lines = len(text.splitlines())
    importers = [other for other, targets in {**GRAPH, **SUBJECT_GRAPH}.items() if name in targets]
    is_package = path.name == "__init__.py"
    assert lines <= 400
    assert ast.get_docstring(ast.parse(text))
    assert lines >= 60 or len(importers) >= 2 or is_package or name in ENTRY_POINTS


def test_the_root_has_room_for_its_words():
    """At most twelve modules and twelve folders."""
    modules = [path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    folders = [path for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))]
    assert len(modules) <= 12
    assert len(folders) <= 12


@pytest.mark.parametrize("name", MODULES)
def test_only_plugin_knows_pytest(name):
    """The line itself can be used and tested without pytest."""
    assert not {"pytest", "_pytest"} & outside(MODULES[name]) or name.startswith("perfsuite.plugin")


@pytest.mark.parametrize("name", MODULES)
def test_only_devices_know_torch_and_nvml(name):
    """Everything else works on numbers."""
    # ruptures takes arrays; the command that uses it is the one exception.
    is_free = name.startswith("perfsuite.devices") or name == "perfsuite.commands.trend"
    assert not {"torch", "pynvml", "numpy"} & outside(MODULES[name]) or is_free


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("perfsuite.devices")])
def test_nobody_outside_devices_guesses_what_a_device_is(name):
    """No comparison with a vendor's name, no getattr on a device: the protocol answers."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value != "cuda" or _is_part_of_a_key(name), f"line {node.lineno}: 'cuda'"
            assert not node.value.startswith(("cuda:", "model:")), f"line {node.lineno}: {node.value!r}"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            assert "device" not in ast.unparse(node.args[0]).rpartition(".")[2], f"line {node.lineno}"


def _is_part_of_a_key(name):
    """A stored environment says which CUDA it had, under that name."""
    return name in ("perfsuite.environment", "perfsuite.remember.schema")


@pytest.mark.parametrize("folder", ["tests/perf", "benchmarks"])
def test_the_suite_and_the_benchmarks_use_public_names(folder):
    """What a package offers in its __all__; a user's suite could not use more."""
    wrong = []
    for path in sorted((PACKAGE.parent / folder).rglob("*.py")):
        for name in structure.imports(path):
            package, _, attribute = name.rpartition(".")
            if name.startswith("perfsuite.") and not name.startswith("perfsuite.frameworks."):
                offered = getattr(importlib.import_module(package), "__all__", ())
                wrong += [] if attribute in offered else [f"{path.name}: {name}"]
    assert [] == wrong


@pytest.mark.parametrize(
    "name", ["perfsuite", "perfsuite.devices", *(CUDA, MODEL, EMULATED), "perfsuite.commands"]
)
def test_every_public_name_can_be_loaded(name):
    """Names are loaded when asked for; one that moved must not be noticed by a user first."""
    package = importlib.import_module(name)
    assert package.__all__
    assert all(getattr(package, public) is not None for public in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_unit_tests_lie_in_the_folders_of_what_they_test():
    """tests/unit mirrors the package, so that a module's tests are found where it is."""
    here = Path(__file__).parent
    folders = {path.parent.relative_to(here) for path in here.rglob("test_*.py")}
    assert [] == [folder for folder in folders if not (PACKAGE / folder).is_dir()]


def test_the_plugin_and_its_subject_do_not_know_each_other():
    """perfsuite never imports social_xlstm, nor the other way round."""
    assert not [name for name, path in MODULES.items() if "social_xlstm" in outside(path)]
    assert not [path for path in SUBJECT.rglob("*.py") if "perfsuite" in outside(path)]


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


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("[m for m in ('torch', 'numpy', 'pynvml') if m in sys.modules]", "[]"),
        (
            "sorted(m for m in sys.modules if m.startswith('perfsuite'))",
            "['perfsuite', 'perfsuite.lazy', 'perfsuite.plugin', 'perfsuite.plugin.options']",
        ),
    ],
    ids=["nothing heavy", "only the light modules"],
)
def test_loading_the_plugin_is_cheap(code, expected):
    """Installing perfsuite must not make every pytest run import torch, or the measuring run."""
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys, perfsuite.plugin; print({code})"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{expected}\n" == ran.stdout
