"""A card sampled through the real bindings on a stand-in library, one scripted behaviour per test."""

import os
import subprocess
import sys

import pytest

from tests.nvml import standin
from tests.nvml.standin import UUID, script, square_wave

ALONE = "at 0 processes 4711:1000000"
STEADY = ["at 0 utilization 87", ALONE]


@pytest.fixture
def watch(library, tmp_path, binding):
    return lambda text, **settings: standin.watch(library, tmp_path, text, binding=binding, **settings)


def test_a_steady_gpu(watch):
    """Mean with its number of samples, no swing, no period, nothing wrong."""
    seen = watch(script(*STEADY))
    assert 0.87 == pytest.approx(seen["mean"], abs=0.002)
    assert seen["samples"] >= 100
    assert (0, None, 0) == (pytest.approx(seen["swing"], abs=0.02), seen["period"], seen["idle"])
    assert ([], []) == (seen["notes"], seen["invalid"])


@pytest.mark.parametrize("dry", [0, 1])
def test_an_idle_gpu_is_at_zero_and_not_absent(watch, dry):
    """The driver adds no samples on an idle card: that means 0 %, not an absent figure."""
    seen = watch(script("at 0 utilization 0", f"at 0 dry {dry}", ALONE))
    assert 0 == seen["mean"]
    assert 20 == pytest.approx(seen["idle"])


def test_idle_gaps_count_in_the_mean(watch):
    """80 % for a quarter of the time is a mean of 20 %, though only busy moments leave samples."""
    seen = watch(script("at 0 utilization 0", "at 10 utilization 80", "at 15 utilization 0", ALONE))
    assert 0.2 == pytest.approx(seen["mean"], abs=0.01)
    assert 10 == pytest.approx(seen["idle"], abs=0.5)


def test_what_happened_before_the_window_is_not_in_it(watch):
    """The driver's buffer reaches back; the cursor starts where the window does."""
    seen = watch(script("at 0 utilization 100", "at 30 utilization 20", ALONE), before=30.0)
    assert 0.2 == pytest.approx(seen["mean"], abs=0.01)
    assert seen["samples"] <= 20 / 0.167 + 2


def test_samples_are_placed_by_the_freshest_of_them(watch):
    """Fetched late, since the card fell idle, they still lie where they were taken."""
    seen = watch(script("at 0 utilization 80", "at 10.6 utilization 0", ALONE))
    assert 9.4 == pytest.approx(seen["idle"], abs=0.3)


@pytest.mark.parametrize("period", [9.0, 9.5, 10.0])
@pytest.mark.parametrize("buffer", ["buffer", "polls"])
def test_a_wave_is_measured(watch, period, buffer):
    """9 % ↔ 90 %: the period within 0.5 s, the swing within 5 points, from the buffer and from polls."""
    lines = [*square_wave(9, 90, period, 60), ALONE]
    lines += ["fail nvmlDeviceGetSamples 3"] if buffer == "polls" else []
    seen = watch(script(*lines), seconds=40.0)
    assert period == pytest.approx(seen["period"], abs=0.5)
    assert 0.81 == pytest.approx(seen["swing"], abs=0.05)


def test_a_short_window_is_too_short_to_judge(watch):
    """Below ten sample periods there is no figure, and the reason names a time that is enough."""
    seen = watch(script(*STEADY, "at 0 sample_ms 1000"), seconds=5.0)
    assert seen["mean"] is None
    assert "too short to judge" in seen["why"]
    assert "it takes at least 10 s" in seen["why"]


@pytest.mark.parametrize("counters", [0, 1])
def test_throttling_for_3_s_of_20_does_not_count(watch, counters):
    """Exact from the driver's counters, approximate from snapshots; the reason says how long."""
    lines = ["at 8 reasons 0x20", "at 11 reasons 0", f"at 0 counters {counters}"]
    seen = watch(script(*STEADY, *lines))
    assert 3.0 == pytest.approx(seen["reported"]["thermal_seconds"], abs=0.01 if counters else 0.6)
    (reason,) = seen["invalid"]
    assert reason.startswith("throttled for ")
    assert reason.endswith("s of 20.0 s (too hot)")


def test_a_power_cap_is_noted_and_the_window_counts(watch):
    """At full load a card at its power limit is normal; the share is a condition of the baseline."""
    seen = watch(script(*STEADY, "at 0 reasons 0x4"))
    assert [] == seen["invalid"]
    assert ["at its power limit for 100 %"] == seen["notes"]
    assert 1.0 == pytest.approx(seen["conditions"]["power_cap_share"])


def test_a_foreign_process_that_comes_does_not_count(watch):
    """Half-way another process appears."""
    seen = watch(script(*STEADY, "at 10 processes 4711:1000 815:-"))
    assert ["another process started to use the GPU during the measurement"] == seen["invalid"]


def test_a_foreign_context_is_judged_by_whether_it_computes(watch):
    """NVML says which processes ran kernels: an idle one is a note, one that starts to compute is not."""
    both = ["at 0 processes 4711:1000 815:1", "at 1 utilization 87", "at 0 active 4711:87"]
    seen = watch(script(*both))
    assert [] == seen["invalid"]
    assert ["another process has a context on the GPU and ran no kernel during the measurement"] == seen[
        "notes"
    ]
    seen = watch(script(*both, "at 12 active 4711:60 815:27"))
    assert ["another process ran kernels on the GPU during the measurement"] == seen["invalid"]


@pytest.mark.parametrize(("idle", "told"), [(1, "was idle before"), (9, "is 40 % busy before")])
def test_in_a_container_that_hides_others_the_card_must_be_idle_before(watch, idle, told):
    """Only this process is listed: whether the card is shared shows while this run waits."""
    lines = ["at 0 utilization 40", f"at {idle} utilization 0", f"at {idle + 1} utilization 87", ALONE]
    seen = watch(script(*lines), hides=True, before=0.5)
    (text,) = [*seen["notes"], *seen["invalid"]]
    assert text.startswith(f"NVML lists only the processes of this container: it {told} the measurement")
    assert ("idle" in told) is (seen["invalid"] == [])


@pytest.mark.parametrize(
    ("line", "absent", "told"),
    [
        ("at 9 utilization 250", "utilization", "NVML reports 250 %"),
        ("at 9 free 30e9", "", "device memory: NVML reports 3e+10 bytes free of 2.4e+10"),
        ("at 0 reserved 30e9", "device_reserved_bytes", "reserved memory: NVML reports 3e+10 bytes"),
        ("at 0 temperature 4000000000", "temperature_max", "temperature: NVML reports 4e+09 °C"),
        ("at 0 power 100000", "power_max_watts", "power: NVML reports 100000 W"),
        ("at 9 power 1", "energy_joules", "energy: NVML reports -"),
        ("at 0 gpm2 250", "sm_active", "sm_active: NVML reports 250 %"),
        ("at 0 sm_clock 99999", "sm_clock_mhz", "SM clock: NVML reports 99999 MHz"),
    ],
)
def test_nonsense_is_absent_with_a_reason(watch, line, absent, told):
    """More than all of it, or more than no card can have, is the driver's mistake and no figure."""
    seen = watch(script(*STEADY, "at 0 gpm 1", "at 0 gpm3 40", line), before=2.0)
    utilization = {} if seen["mean"] is None else {"utilization": seen["mean"]}
    figures = {**seen["reported"], **seen["conditions"], **utilization}
    assert absent not in figures
    (reason,) = [text for text in (*seen["notes"], seen["why"]) if text.endswith("which cannot be")]
    assert reason.startswith(told)
    assert 0.4 == pytest.approx(figures["sm_occupancy"])
    assert {4e9} == set(seen["memory"])


def test_in_a_container_processes_are_counted(watch):
    """Ids of another namespace: as many as this run has processes are ours, and one more is not."""
    alone, two = "at 0 processes 99:1", "at 0 processes 99:1 100:1"
    assert [] == watch(script("at 0 utilization 80", alone))["invalid"]
    shared = watch(script("at 0 utilization 80", two), before=1.0)
    assert ["another process is on the GPU: it is 80 % busy before the measurement begins"] == shared[
        "invalid"
    ]
    assert [] == watch(script("at 0 utilization 80", two), ours=2)["invalid"]


def test_the_run_that_started_this_process_is_not_foreign(watch):
    """It keeps its context on the card, and memory, while fresh processes measure for it."""
    lines = ["at 0 utilization 80", "at 0 processes 4711:1000000000 4700:17000000000"]
    lines += ["at 0 total 24e9", "at 0 free 4e9"]
    assert 2 == len(watch(script(*lines), before=1.0)["invalid"])
    assert [] == watch(script(*lines), own=[4711, 4700])["invalid"]


def test_memory_is_seen_over_the_window(watch):
    """Every snapshot adds a point to the series that the report draws."""
    seen = watch(script(*STEADY, "at 0 total 24e9", "at 0 free 20e9", "at 10 free 8e9"))
    assert (4e9, 16e9) == (seen["memory"][0], seen["memory"][-1])
    assert len(seen["memory"]) >= 20


def test_a_card_whose_processes_are_hidden_says_so(watch):
    """An empty list that does not even contain this process proves nothing."""
    seen = watch(script("at 1 utilization 80", "at 0 processes none"))
    assert [] == seen["invalid"]
    assert any("not even this one: it was idle before" in note for note in seen["notes"])


def test_memory_held_by_others_does_not_count(watch):
    """A card whose memory is half used by others is rejected; what this process holds is not counted."""
    lines = [*STEADY, "at 0 total 24e9", "at 0 free 4e9"]
    assert "only 3.73 GiB of the GPU's 22.4 GiB are free" in watch(script(*lines))["invalid"][0]
    assert [] == watch(script(*lines), own_bytes=18e9)["invalid"]


@pytest.mark.parametrize(
    ("function", "nth"),
    [("nvmlDeviceGetSamples", 7), ("nvmlDeviceGetMemoryInfo_v2", 20), ("nvmlDeviceGetClockInfo", 1)],
)
def test_a_gpu_lost_at_the_nth_call_does_not_count(watch, function, nth):
    """Whichever call reports it first."""
    seen = watch(script(*STEADY, f"fail {function} 15 {nth}"))
    assert seen["mean"] is None
    (reason,) = seen["invalid"]
    assert "the GPU is lost: it has fallen off the bus" in reason
    assert f"({function.removesuffix('_v2')}: GPU_IS_LOST)" in reason


def test_driver_and_library_that_do_not_fit_do_not_count(watch):
    """After a driver update without a reboot even opening fails."""
    seen = watch(script(*STEADY, "fail nvmlInitWithFlags 18"))
    assert "the driver was changed without a reboot" in seen["invalid"][0]


@pytest.mark.parametrize(
    ("code", "told"),
    [(3, "this device does not report it"), (4, "this user may not read it"), (999, "unknown error")],
)
def test_what_may_not_be_read_is_absent(watch, code, told):
    """No permission, not supported: the figure is missing with its reason, the rest is there."""
    lines = [f"fail nvmlDeviceGetSamples {code}", f"fail nvmlDeviceGetUtilizationRates {code}"]
    seen = watch(script(*STEADY, *lines))
    assert seen["mean"] is None
    assert told in seen["why"]
    assert 4e9 == seen["reported"]["device_used_bytes"]
    assert [] == seen["invalid"]


def test_an_empty_buffer_is_not_idleness_where_nothing_is_reported_at_all(watch):
    """WSL2 has neither: «not found» there must not read as 0 %."""
    lines = ["fail nvmlDeviceGetSamples 6", "fail nvmlDeviceGetUtilizationRates 3"]
    assert watch(script(*STEADY, *lines))["mean"] is None


def test_a_mig_slice_is_found_and_has_no_utilization(watch):
    """The UUID of a slice, no utilization, memory of its own, and a note that MIG is on."""
    mig = UUID.replace("GPU-", "MIG-")
    lines = ["fail nvmlDeviceGetSamples 3", "fail nvmlDeviceGetUtilizationRates 3", "at 0 mig 1", ALONE]
    seen = watch(script(*lines, card=mig), uuids=[UUID, mig])
    assert "" == seen["absent"]
    assert seen["mean"] is None
    assert seen["notes"][0].startswith("MIG is on")
    assert 1.0 == seen["conditions"]["mig"]


@pytest.mark.parametrize(("code", "told"), [(9, "the NVIDIA driver is not loaded"), (17, "cgroup blocks")])
def test_a_card_that_cannot_be_opened_is_absent(watch, code, told):
    """No figure, no failure of its own."""
    seen = watch(script(*STEADY, f"fail nvmlInitWithFlags {code}"))
    assert told in seen["why"]
    assert [] == seen["invalid"]


def test_another_card_is_never_taken_instead(watch):
    """A UUID that NVML does not know is no reason to sample the first card."""
    seen = watch(script(*STEADY, card="GPU-other"))
    assert seen["absent"].startswith(f"NVML does not know {UUID}")


def test_functions_missing_in_an_old_driver(tmp_path, tmp_path_factory, binding, library):
    """Event reasons under their old name, memory in its first version, no GPM: everything else as ever."""
    hidden = ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMemoryInfo_v2"]
    hidden += ["nvmlGpmQueryDeviceSupport", "nvmlDeviceGetFieldValues"]
    hidden += ["nvmlDeviceGetComputeRunningProcesses_v3"]
    old = standin.build(tmp_path_factory.mktemp("old"), hidden)
    lines = ["at 8 reasons 0x80", "at 11 reasons 0", "at 12 processes 4711:1 815:1"]
    seen = standin.watch(old, tmp_path, script(*STEADY, *lines), binding=binding)
    throttled, shared = seen["invalid"]
    assert throttled.endswith("(power brake)")
    assert shared.startswith("another process started")
    assert 4e9 == seen["reported"]["device_used_bytes"]
    assert "device_reserved_bytes" not in seen["reported"]
    assert 0.87 == pytest.approx(seen["mean"], abs=0.002)


@pytest.mark.parametrize("first", [1, 12])
def test_a_call_that_blocks_does_not_stop_the_test(watch, first):
    """The first call or a later one takes an hour: start and stop return, the process ends."""
    lines = [f"block nvmlDeviceGetTemperature 3600 {first}"]
    seen = watch(script(*STEADY, *lines), patience=0.3)
    assert ["NVML has not answered for 0.3 s: the sampler is stuck in the driver"] == seen["invalid"]
    assert seen["mean"] is None


def test_a_sampler_that_died_does_not_count(watch):
    """Snapshots of half a window do not describe the window."""
    seen = watch(script(*STEADY), dies=True)
    assert (["the sampler died"], None) == (seen["invalid"], seen["mean"])


def test_counters_of_the_multiprocessors_are_averages_of_the_window(watch):
    """One sample before and one after; what the card does not count is missing."""
    lines = ["at 0 gpm 1", "at 0 gpm2 40", "at 10 gpm2 60", "at 0 gpm10 25"]
    reported = watch(script(*STEADY, *lines))["reported"]
    assert 0.5 == pytest.approx(reported["sm_active"], abs=0.01)
    assert 0.25 == pytest.approx(reported["dram_active"])
    assert "tensor_active" not in reported


def test_clocks_power_and_energy_are_reported(watch):
    """Clocks under load are conditions; an idle card's clocks are not."""
    lines = ["at 0 sm_clock 1200", "at 0 power 100", "at 0 persistence 0"]
    busy = watch(script(*STEADY, *lines))
    assert (1200, 150, 1695) == tuple(
        busy["conditions"][name] for name in ("sm_clock_mhz", "power_limit_watts", "max_sm_clock_mhz")
    )
    assert 2000 == pytest.approx(busy["reported"]["energy_joules"], rel=0.05)
    assert busy["notes"][0].startswith("persistence mode is off")
    assert "sm_clock_mhz" not in watch(script("at 0 utilization 0", ALONE))["conditions"]


def test_without_the_library_the_reason_is_reported():
    """A machine without NVIDIA's library has no card and no traceback."""
    code = "from perfsuite.devices.cuda.nvml import open_nvml; print(open_nvml(('GPU-1',)).absent)"
    bare = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=bare)
    if "does not know" in ran.stdout:
        pytest.skip("this machine has the library")
    assert "NVIDIA" in ran.stdout
