"""The machine key names what must match and nothing else."""

import subprocess

import pytest

from perfsuite.environment import Environment, git_state, slug
from perfsuite.records import CardMatch, DeviceFacts, Match


def environment(**changes):
    facts = {
        "device_kind": "cuda",
        "device_name": "NVIDIA A10",
        "device_uuid": "GPU-1",
        "device_memory_bytes": 24 * 10**9,
        "driver": "550.1",
        "cuda": "12.8",
        "torch": "2.13.0",
        "python": "3.11.7",
        "system": "Linux x86_64",
        "cpu": "Some CPU",
        "host_memory_bytes": 64 * 10**9,
        "threads": None,
    }
    return Environment(**{**facts, **changes})


def test_the_key_is_readable_and_safe():
    """Device, CUDA and torch's minor version, fit for a folder's name."""
    assert "cuda_nvidia-a10_cuda12.8_torch2.13" == environment().key


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Match.EXACT),
        ({"torch": "2.13.1+cu128"}, Match.EXACT),
        ({"driver": "999", "python": "3.12.1", "device_uuid": "GPU-2"}, Match.EXACT),
        ({"torch": "2.14.0"}, Match.NEAR),
        ({"cuda": "13.0"}, Match.NEAR),
        ({"device_name": "NVIDIA A100-SXM4-40GB"}, Match.NONE),
        ({"device_kind": "cpu"}, Match.NONE),
    ],
)
def test_what_must_match(changes, expected):
    """The device decides whether two readings may be compared, torch and CUDA whether one may gate."""
    match, reason = environment().match(environment(**changes))
    assert expected is match
    assert bool(reason) is (expected is not Match.EXACT)


HOSTED = {"host": "AMD EPYC 7763", "device_uuid": "GPU-12345678-aaaa"}


@pytest.mark.parametrize(
    ("stored", "match", "card"),
    [
        (HOSTED, Match.EXACT, CardMatch.SAME),
        ({**HOSTED, "device_uuid": "GPU-87654321-bbbb"}, Match.EXACT, CardMatch.OTHER),
        ({**HOSTED, "device_uuid": "GPU-12345678-bbbb"}, Match.EXACT, CardMatch.OTHER),
        ({**HOSTED, "device_uuid": None}, Match.EXACT, CardMatch.UNKNOWN),
        ({**HOSTED, "host": "Intel Xeon 8480"}, Match.NEAR, CardMatch.SAME),
        ({"host": None}, Match.EXACT, CardMatch.UNKNOWN),  # stored before hosts were
        ({**HOSTED, "host": None}, Match.EXACT, CardMatch.UNKNOWN),
    ],
)
def test_the_host_must_match_and_the_card_decides_how_tightly(stored, match, card):
    """Most steps are as fast as the host launches them; a baseline without host and card gates as it did."""
    here = environment(**HOSTED)
    assert match is here.match(environment(**stored))[0]
    assert card is here.match_card(environment(**stored))
    assert ("Intel" in here.match(environment(**stored))[1]) is (match is Match.NEAR)


def test_a_known_card_has_a_folder_of_its_own():
    """Baselines of several cards lie beside each other; a device without a host condition has no card."""
    assert "cuda_nvidia-a10_amd-epyc-7763_cuda12.8_torch2.13_gpu-12345678" == environment(**HOSTED).key
    assert "cuda_nvidia-a10_amd-epyc-7763_cuda12.8_torch2.13" == environment(**HOSTED).kind_key
    emulated = Environment.from_device(DeviceFacts("emulated-a10", "A10 emulated", "", uuid="GPU-1"))
    assert ("", emulated.kind_key) == (emulated.card, emulated.key)


def test_equal_keys_are_exact_matches():
    """The folder and the match never disagree."""
    one, other = environment(), environment(torch="2.14.0")
    assert (one.key == other.key) is (one.match(other)[0] is Match.EXACT)


def test_a_stored_environment_survives_unknown_and_missing_fields():
    """Older and newer files can be read."""
    stored = {**environment().to_stored(), "from_the_future": 1}
    del stored["driver"]
    assert environment(driver=None) == Environment.from_stored(stored)


def test_slugs_are_plain():
    """No character that a file system could dislike."""
    assert "intel-r-xeon-2.3ghz" == slug(" Intel(R) Xeon @2.3GHz. ")


def git(folder, *arguments):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
    )


def test_commit_and_dirtiness_leave_the_baselines_aside(tmp_path):
    """New baselines do not make the code that was measured dirty; changed code does."""
    assert (None, None) == git_state(tmp_path)
    git(tmp_path, "init")
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "a.json").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    commit, dirty = git_state(tmp_path, tmp_path / "baselines")
    assert 40 == len(commit)
    assert dirty is False
    (tmp_path / "baselines" / "a.json").write_text("2")
    assert git_state(tmp_path, tmp_path / "baselines")[1] is False
    (tmp_path / "code.py").write_text("2")
    assert git_state(tmp_path, tmp_path / "baselines")[1] is True


def test_the_device_decides_what_identifies_a_machine():
    """A CPU brings its threads, and no UUID is invented."""
    here = Environment.from_device(DeviceFacts("cpu", "Some CPU", "perf_counter", threads=4))
    assert "cpu_some-cpu_4-threads" in here.key
    assert here.device_uuid is None
