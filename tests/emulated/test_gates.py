"""What an emulated card counts is gated: copies and memsets within it, kernels by name, the replay of a graph."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.emulated.runs import ROOT

pytestmark = [pytest.mark.cuda_torch, pytest.mark.slow]
SOURCE = """
import pytest, torch

pytestmark = [pytest.mark.gpu, pytest.mark.perf(min_time="1 s", max_time="1 s")]


def training(device):
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    large = torch.ones(2**20, device=device)

    def step():
        weight.grad = None
        hidden = torch.tanh(weight @ weight)
        copied = hidden
        scaled = hidden
        total = large[0]
        hidden.sum().backward()

    return step


def test_eager(perf):
    perf(training(perf.device))


def test_graph(perf):
    weight = torch.ones(2**20, device=perf.device)

    def step():
        torch.tanh(weight).sum()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    perf(graph.replay)
"""
PLANTED = {
    "copied = hidden": "copied = hidden.clone()",
    "scaled = hidden": "scaled = hidden * 2",
    "total = large[0]": "total = large.sum()",
    "perf(graph.replay)": "perf(step)",
}


def run(folder, *flags):
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:logging", "--perf-device=emulated:a10", *flags]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)


def readings(folder):
    written = json.loads((folder / "readings.json").read_text())["benchmarks"]
    return {one["name"]: one["extra_info"]["perfsuite"] for one in written}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The project with its baseline, and with what was counted for it."""
    folder = tmp_path_factory.mktemp("gates") / "project"
    folder.mkdir()
    (folder / "pytest.ini").touch()
    (folder / "test_it.py").write_text(SOURCE)
    ran = run(folder, "--save-baseline", "--perf-json=readings.json")
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    return folder


@pytest.fixture(scope="module")
def planted(stored, tmp_path_factory):
    """What is said of the same project with everything planted at once; a line by the text it has."""
    folder = tmp_path_factory.mktemp("planted") / "project"
    shutil.copytree(stored, folder)
    text = SOURCE
    for was, becomes in PLANTED.items():
        assert 1 == text.count(was)
        text = text.replace(was, becomes)
    (folder / "test_it.py").write_text(text)
    ran = run(folder, "--perf", "--perf-json=readings.json", "--perf-html=page.html")
    assert 1 == ran.returncode, ran.stdout + ran.stderr
    lines = {line.strip(): number for number, line in enumerate(text.splitlines(), 1)}
    return ran.stdout + (folder / "page.html").read_text(), lines, readings(folder)


def counted(reading, *names):
    return tuple(reading["metrics"][name]["value"] for name in names)


def test_a_replay_is_one_launch_of_its_nodes(stored):
    """The kernels a card runs are counted either way; what the host launches is one."""
    replayed, eager = readings(stored)["test_graph"], readings(stored)["test_eager"]
    names = ("kernels", "memsets", "launches", "graph_launches", "graph_nodes")
    assert (2, 1, 1, 1, 3) == counted(replayed, *names)
    kernels = eager["metrics"]["kernels"]["value"]
    assert (kernels, 0, kernels, 0, 0) == counted(eager, *names)


def test_the_allocator_s_figures_add_up(stored):
    """Reserved is allocated and the rest; pieces of its blocks are free, nothing ran full; cuBLAS apart."""
    found = readings(stored)["test_eager"]
    told = found["reported"]
    (peak,) = counted(found, "peak_memory")
    before = 22 * 2**20  # the segment of cuBLAS's workspaces, and one of small tensors
    allocated = peak + told["cublas_workspace_bytes"]
    assert before + told["reserved_memory_bytes"] == allocated + told["unallocated_reserved_bytes"]
    assert 0 < told["fragmented_bytes"] <= before + told["reserved_memory_bytes"]
    assert (0, 0) == (told["alloc_retries"], told["device_allocations"])
    assert told["cublas_workspace_bytes"] > 0


def test_a_stray_clone_turns_red_with_its_line(planted):
    """It is a copy within the card and no kernel."""
    told, lines, _ = planted
    text = "copied = hidden.clone()"
    assert "emulated copies within the device per step 1 is 100.0 % above the baseline 0 (allowed: 0)" in told
    assert f"  1 more (baseline 0) at test_it.py:{lines[text]} in step: {text}" in told


def test_a_memset_turns_red_with_its_line(planted):
    """The parts of a large sum are counted in memory that is cleared first."""
    told, lines, _ = planted
    text = "total = large.sum()"
    assert "emulated memsets per step 1 is 100.0 % above the baseline 0 (allowed: 0)" in told
    assert f"  1 more (baseline 0) at test_it.py:{lines[text]} in step: {text}" in told


def test_a_lost_replay_turns_red_with_its_lines(planted):
    """As many kernels as before, but launched one by one: the lines of the step, not that of the replay."""
    told, lines, found = planted
    text = "torch.tanh(weight).sum()"
    assert "emulated launches by the host per step 2 is 100.0 % above the baseline 1 (allowed: 1)" in told
    assert f"  2 more (baseline 0) at test_it.py:{lines[text]} in step: {text}" in told
    assert (2, 2, 0, 0) == counted(
        found["test_graph"], "kernels", "launches", "graph_launches", "graph_nodes"
    )


def test_a_new_kernel_is_named_beside_its_line(planted):
    """By its short name, and in the JSON by its whole name with its lines."""
    told, lines, found = planted
    text = "scaled = hidden * 2"
    assert f"  +1 vectorized_elementwise_kernel<MulFunctor> at test_it.py:{lines[text]}" in told
    (at,) = (at for name, at in found["test_eager"]["launched"].items() if "MulFunctor" in name)
    assert {f"test_it.py step: {text}": 1.0} == at


def test_launches_without_a_graph_are_not_said_twice(planted):
    """They are the kernels."""
    told, _, found = planted
    assert counted(found["test_eager"], "kernels") == counted(found["test_eager"], "launches")
    assert "emulated kernels per step " in told
    said = [line for line in told.splitlines() if "launches by the host per step " in line]
    assert said  # of the lost graph
    assert all("launches by the host per step 2 is 100.0 %" in line for line in said)


def test_times_are_not_compared_with_those_of_another_run(planted):
    """They depend on the host's load: no «+800 %» in the table, on the page, in the JSON, in the shares."""
    told, _, found = planted
    assert ["–", "–"] == [reading["against_baseline"] for reading in found.values()]
    assert "where the step's time would go (predicted)" in told
    assert not re.search(r"time would go .*\(baseline", told)
    assert '"stepsBefore": []' in told
    assert not re.search(r'"stepsBefore": \[\d', told)
    assert not re.search(r'"sharesBefore": \{"', told)


AFTER_ANOTHER = """
import pytest, torch

pytestmark = [pytest.mark.gpu, pytest.mark.perf(min_time="1 s", max_time="1 s")]


def test_first(perf):
    weight = torch.ones(64, 64, device=perf.device)
    perf.compare(without=lambda: weight @ weight, with_=lambda: weight @ weight)


def test_second(perf):
    weight = torch.ones(64, 64, device=perf.device)
    perf(lambda: weight + 1)
"""


def test_a_test_s_peak_does_not_depend_on_the_one_before(tmp_path):
    """What cuBLAS took for the first test would be part of the second one's peak, or not if it runs alone."""
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(AFTER_ANOTHER)
    ran = run(tmp_path, "--perf", "--perf-json=readings.json")
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    found = readings(tmp_path)
    assert (2 * 64 * 64 * 4,) == counted(found["test_second"], "peak_memory")
