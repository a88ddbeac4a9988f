"""New baselines as a patch, and what the proposing job refuses."""

import contextlib
import json
import math
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsuite.environment import Environment
from perfsuite.remember import files, patch
from perfsuite.remember.patch import PatchRefused, check_patch, of_documents
from tests.unit.remember.test_schema import DOCUMENT

ROOT = Path(__file__).parents[3]
BELOW = PurePosixPath("baselines")
KEY = Environment.from_stored(DOCUMENT["environment"]).key
NAME = f"baselines/{KEY}/tests/test_a.py/test_b.json"


@pytest.fixture
def repository(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def documents(**readings):
    return {DOCUMENT["test"]: {**DOCUMENT, **readings}}


def written(repository, text):
    path = repository / "new.patch"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(repository, text):
    with pytest.raises(PatchRefused) as refused:
        check_patch(written(repository, text), BELOW, repository)
    assert not (repository / "baselines").exists()
    return str(refused.value)


def test_git_applies_the_patch_and_the_baseline_is_the_one_that_would_be_stored(repository):
    """Byte for byte; a second one changes only what changed."""
    text = of_documents(documents(), repository / "baselines", repository)
    subprocess.run(["git", "apply", written(repository, text)], cwd=repository, check=True)
    assert files.render(DOCUMENT) == (repository / NAME).read_text()
    assert "" == of_documents(documents(), repository / "baselines", repository)
    again = of_documents(
        documents(schema="perfsuite-baseline/1", test=DOCUMENT["test"]), repository / "baselines", repository
    )
    assert "" == again


def test_a_checked_patch_is_told_and_written(repository):
    """The tests it is of, and with is_applied the very bytes that were checked."""
    text = of_documents(documents(), repository / "baselines", repository)
    path = written(repository, text)
    assert [f"tests/test_a.py::test_b on {KEY}: step"] == check_patch(path, BELOW, repository)
    assert not (repository / NAME).exists()
    check_patch(path, BELOW, repository, is_applied=True)
    assert files.render(DOCUMENT) == (repository / NAME).read_text()
    # Made anew elsewhere, while here the old one is still there: it is replaced.
    check_patch(path, BELOW, repository, is_applied=True)


@pytest.mark.parametrize(
    "name",
    [
        "baselines/../evil.json",
        "../baselines/evil.json",
        "/etc/evil.json",
        "baselines/.git/evil.json",
        ".github/workflows/ci.yml",
        "baselines/a b.json",
        "baselines/evil.py",
        "baselinesX/evil.json",
    ],
)
def test_a_patch_that_leaves_the_folder_is_refused(repository, name):
    """Whatever is in it."""
    assert "refused" in refusal(repository, patch.render({name: (None, "{}\n")}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("0.1", "NaN", 1), "NaN is not a number"),
        (lambda text: text.replace("0.1", "1e999", 1), "not"),
        (lambda text: text.replace("new file mode 100644", "new file mode 120000"), "not belong in a patch"),
        (lambda text: text.replace("new file mode 100644", "new file mode 100755"), "not belong in a patch"),
        (lambda text: text + "rename from a\nrename to b\n", "not belong in a patch"),
        (lambda text: text + "GIT binary patch\n", "not belong in a patch"),
        (lambda text: text.replace(f"+++ b/{NAME}", "+++ b/../evil"), "not the file of its section"),
        (lambda text: text.replace(f" b/{NAME}\n", " b/evil\n", 1), "names two files"),
        (lambda text: text.replace("test_a.py::test_b", "test_a.py::test_c"), "is not where the baseline of"),
        (lambda text: text.replace('"kind"', '"kinD"'), "lacks kind"),
        (lambda text: "", "touches 0 files"),
        (lambda text: b"\xff\xfe", "utf-8"),
        (lambda text: "x" * 20_000_001, "at most 20,000,000 are read"),
        (lambda text: text.replace("@@ -0,0", "@@ -7,9"), "git apply"),
    ],
)
def test_a_patch_that_was_tampered_with_is_refused(repository, change, reason):
    """NaN, symbolic links, binaries, another file's name, another test's place, another size."""
    assert reason in refusal(
        repository, change(of_documents(documents(), repository / "baselines", repository))
    )


def test_an_oversized_baseline_is_refused(repository):
    """More than a baseline can have, though every line is well-formed."""
    text = json.dumps({**DOCUMENT, "padding": ["x" * 1000] * 1100}, indent=1) + "\n"
    assert "1,000,000" in refusal(repository, patch.render({NAME: (None, text)}))


def test_a_way_through_a_symbolic_link_is_refused(repository):
    """The folder may have been replaced in the repository itself."""
    (repository / "elsewhere").mkdir()
    (repository / "baselines").symlink_to(repository / "elsewhere")
    text = patch.render({NAME: (None, files.render(DOCUMENT))})
    with pytest.raises(PatchRefused, match="symbolic link"):
        check_patch(written(repository, text), BELOW, repository, is_applied=True)
    assert [] == list((repository / "elsewhere").iterdir())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_patch_writes_outside_whatever_it_says(repository, data):
    """Random edits of a good patch: refused, or only its file is written."""
    good = of_documents(documents(), repository / "baselines", repository).encode()
    at = data.draw(st.integers(0, len(good)))
    inserted = data.draw(
        st.binary(max_size=30) | st.sampled_from([b"\n--- a/../x\n", b"\ndiff --git a/x b/x\n"])
    )
    path = written(repository, good[:at] + inserted + good[at + data.draw(st.integers(0, 30)) :])
    with contextlib.suppress(PatchRefused):
        check_patch(path, BELOW, repository, is_applied=True)
    found = {entry.relative_to(repository).as_posix() for entry in repository.rglob("*") if entry.is_file()}
    assert {name for name in found if not name.startswith(".git/")} <= {"new.patch", NAME}
    for entry in repository.glob("baselines/**/*.json"):
        assert all(math.isfinite(v) for v in json.loads(entry.read_text())["readings"]["step"]["rounds"])
        entry.unlink()


def test_the_command_needs_nothing_but_python(repository):
    """The proposing job installs nothing: no code of others runs where it may write."""
    written(repository, of_documents(documents(), repository / "baselines", repository))
    command = [sys.executable, "-S", "-m", "perfsuite", "check-patch", "new.patch", "--apply"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=False
    )
    assert (0, "") == (ran.returncode, ran.stderr)
    assert "1 baseline written" in ran.stdout
    written(repository, "evil")
    ran = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=False
    )
    assert 1 == ran.returncode
    assert ran.stderr.startswith("perfsuite: patch new.patch is refused: 'evil' does not belong")
