"""What is asked for, how a card is described to the library, and what processes left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite.devices.emulated import launch
from perfsuite.devices.emulated.counts import Count, demangle, read_counts, render_counts, render_refused
from perfsuite.devices.model.cards import load_cards
from perfsuite.errors import DeviceMissing


@pytest.mark.parametrize(
    ("text", "name", "count"), [("a10", "a10", 1), ("1xa10", "a10", 1), ("4xa10", "4xa10", 4)]
)
def test_cards_are_asked_for_by_name_and_number(text, name, count):
    """As --perf-device=emulated:… spells them."""
    wanted = launch.Wanted.from_name(text)
    assert (name, count) == (wanted.name, wanted.count)


@pytest.mark.parametrize(
    ("text", "words"),
    [("0xa10", "1 to 16 cards"), ("17xa10", "1 to 16 cards"), ("b52", "unknown card 'b52'")],
)
def test_what_cannot_be_emulated_is_refused(text, words):
    """Too many, none, or a card nobody knows."""
    with pytest.raises(DeviceMissing, match=words):
        launch.Wanted.from_name(text)


@pytest.mark.parametrize("name", load_cards())
def test_every_card_of_the_table_can_be_described(name):
    """Capability, clock and rates follow from its entry; the name says that it is emulated."""
    lines = dict(line.split(" ", 1) for line in launch.describe(launch.Wanted.from_name(name)).splitlines())
    assert lines["name"].endswith("(emulated)")
    assert 6 <= int(lines["major"]) <= 9
    assert 500 <= int(lines["sm_clock_mhz"]) <= 3000
    assert all(
        float(lines[key]) > 0
        for key in ("float32", "bytes_per_ns", "pinned_bytes_per_ns", "kernel_ns", "sms")
    )


def test_two_runs_have_cards_of_their_own():
    """Locks go by UUID: runs at once must not wait for each other."""
    wanted = launch.Wanted.from_name("a10")
    assert launch.describe(wanted) != launch.describe(wanted)


def test_folders_of_dead_runs_are_cleared_away():
    """A run that was killed could not do it."""
    code = "from perfsuite.devices.emulated import launch; f = launch.new_folder(); print(f.is_dir(), f)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    was_there, left = ran.stdout.split()
    mine = launch.new_folder()
    assert "True" == was_there
    assert not os.path.exists(left)
    mine.rmdir()


def test_a_dead_run_s_folder_that_another_run_clears_away_meanwhile_is_no_error(monkeypatch):
    """Two runs that begin at once find the same folders."""
    gone = Path("/dev/shm/perfsuite-emulated-999999999-gone")
    monkeypatch.setattr(Path, "glob", lambda place, pattern: [gone])
    launch.new_folder().rmdir()


def test_counts_of_all_processes_are_added_up(tmp_path):
    """By kind and name; graphs tell their nodes."""
    (tmp_path / "counts-1").write_text(
        "kernel\t3\t0\t0\t0\t_Z3addPfi\nh2d\t1\t4096\t1\t1\tMemcpy HtoD\nrefused\t2\t0\t0\t0\tcufftCreate\n"
    )
    (tmp_path / "counts-2").write_text("kernel\t2\t0\t0\t0\t_Z3addPfi\ngraph\t1\t8\t0\t0\tcudaGraphLaunch\n")
    counts = read_counts(tmp_path)
    assert Count("kernel", "_Z3addPfi", 5, 0) in counts
    told = render_counts(counts)
    assert "5    add(float*, int)" in told
    assert "1  copies to the card, 4 KiB" in told
    assert "1  graph launches, 8 nodes" in told
    assert "the emulated GPU does not have, and refused: cufftCreate (2×)" == render_refused(counts)


def test_nothing_done_is_said_and_nothing_refused_is_not():
    """No table of zeros."""
    assert ("nothing was done on the emulated GPU", "") == (render_counts([]), render_refused([]))


def test_names_that_are_no_c_plus_plus_stay_as_they_are():
    """Triton's and the libraries' own."""
    assert ["triton_poi_fused_add_0", "cublasSgemm"] == [
        demangle(name) for name in ("triton_poi_fused_add_0", "cublasSgemm")
    ]
