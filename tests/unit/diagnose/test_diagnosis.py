"""Shares and clues in, the cause out: every rule at its threshold, the heaviest cause first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.diagnose.diagnosis import diagnose
from perfsuite.records import SHARES, whole, with_data_wait
from perfsuite.report.explanation import explain
from tests.readings import make_reading

FAST_LOADER = {"num_workers": 2.0, "cores": 8.0, "persistent_workers": 1.0}


def reading(shares=None, clues=None, *, data_wait=None, batch=64, device="cuda:0", wall=1.0, **figures):
    return make_reading(
        "loop",
        "loop",
        device,
        100,
        10,
        100 * batch,
        wall,
        (wall / 100,) * 100,
        data_wait=data_wait,
        shares=shares or {},
        clues=clues or {},
        **figures,
    )


def cause(*arguments, **figures):
    likely = diagnose(reading(*arguments, **figures)).likely
    return likely.name if likely else None


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.049, None), (0.05, "partly data-bound"), (0.199, "partly data-bound"), (0.2, "data-bound")],
)
def test_waiting_for_data_counts_from_a_twentieth_and_binds_from_a_fifth(share, expected):
    """The usual thresholds: fine below 5 %, input-bound from 20 % on."""
    likely = diagnose(reading({}, FAST_LOADER, data_wait=share)).likely
    assert expected == (likely and likely.title.partition(":")[0])


@pytest.mark.parametrize(
    ("clues", "title", "advice"),
    [
        (
            {"num_workers": 0.0, "batch_seconds": 0.03, "resident_step_seconds": 0.012},
            "no workers",
            "Try num_workers=4 (now 0), persistent_workers=True: a batch takes 30 ms to make",
        ),
        (
            {"num_workers": 2.0, "batch_seconds": 0.03, "resident_step_seconds": 0.012},
            "too few workers",
            "Try num_workers=4 (now 2): a batch takes 30 ms to make",
        ),
        (
            {
                "num_workers": 2.0,
                "batch_seconds": 3.0,
                "resident_step_seconds": 0.012,
                "sample_cpu_share": 1.0,
            },
            "slow samples",
            "so 313 workers would be needed and 8 are the most that help on 8 cores",
        ),
        (
            {
                "num_workers": 2.0,
                "batch_seconds": 0.03,
                "resident_step_seconds": 0.012,
                "sample_cpu_share": 0.1,
                "sample_seconds": 0.004,
                "worker_read_bytes_per_s": 5e7,
            },
            "samples wait for a disk or another service",
            "a sample takes 4 ms, 10.0 % of it computing (workers read 47.7 MiB/s from storage)",
        ),
        (
            {
                "num_workers": 4.0,
                "batch_seconds": 0.03,
                "resident_step_seconds": 0.012,
                "slowest_sample_share": 0.6,
                "samples_timed": 64.0,
                "slowest_sample_seconds": 0.9,
                "sample_seconds": 0.001,
            },
            "one slow sample",
            "the slowest of 64 samples took 900 ms, the median one 1 ms",
        ),
        (
            {
                "num_workers": 4.0,
                "batch_seconds": 0.03,
                "resident_step_seconds": 0.012,
                "worker_cpu_share": 0.97,
            },
            "workers at full CPU",
            "the workers use 97.0 % of theirs",
        ),
        (
            {
                "num_workers": 4.0,
                "batch_seconds": 0.03,
                "resident_step_seconds": 0.012,
                "prefetch_factor": 2.0,
            },
            "uneven batches",
            "Try prefetch_factor=4 (now 2)",
        ),
    ],
)
def test_a_slow_loader_is_told_by_its_kind_with_the_runs_numbers(clues, title, advice):
    """The kind of slowness decides the advice."""
    likely = diagnose(reading({}, {"cores": 8.0, **clues}, data_wait=0.4, wall=2.0)).likely
    assert f"data-bound: {title}" == likely.title
    assert advice in likely.advice


@pytest.mark.parametrize(
    ("workers", "advice"), [(0, "a batch takes 500 µs"), (2, "Try num_workers=0 (now 2)")]
)
def test_workers_are_no_advice_for_batches_that_cost_less_than_handing_them_over(workers, advice):
    """They made an in-memory data set slower."""
    clues = {"num_workers": float(workers), "batch_seconds": 5e-4, "resident_step_seconds": 0.006}
    likely = diagnose(reading({}, {"cores": 8.0, "sample_cpu_share": 0.2, **clues}, data_wait=0.4)).likely
    assert "data-bound: small batches" == likely.title
    assert likely.advice.startswith(advice)
    assert "`__getitems__`" in likely.advice


def test_a_wait_that_a_rerun_does_not_confirm_is_told_and_comes_last():
    """A step that is no faster on one resident batch does not wait for its loader alone."""
    clues = {**FAST_LOADER, "resident_step_seconds": 0.0099}
    shares = {"launch_gaps": 0.3, "kernels": 0.3}
    found = diagnose(reading(shares, {**clues, "kernels_per_step": 900.0}, data_wait=0.4)).causes
    assert "data-bound" == found[-1].name
    assert "waiting for data, which a rerun does not confirm" == found[-1].title
    assert found[-1].evidence.endswith("9.9 ms instead of 10 ms: without the loader it is 1.0 % faster")


def test_workers_that_compute_are_no_more_than_the_cores():
    """Two cores do not compute for four; workers that wait may be more."""
    clues = {"num_workers": 0.0, "cores": 2.0, "batch_seconds": 0.03, "resident_step_seconds": 0.012}
    for share, workers in ((0.9, 2), (0.1, 4)):
        likely = diagnose(reading({}, {**clues, "sample_cpu_share": share}, data_wait=0.4, wall=2.0)).likely
        assert f"num_workers={workers} (now 0)" in likely.advice


def test_the_rerun_on_one_batch_is_the_proof_and_a_refusal_is_told():
    """A share of waiting alone proves nothing."""
    proven = diagnose(reading({}, {**FAST_LOADER, "resident_step_seconds": 0.006}, data_wait=0.4)).likely
    rerun = "a step takes 6 ms instead of 10 ms: 40.0 % is due to the loader (proven by a rerun)"
    assert rerun in proven.evidence
    refused = diagnose(
        reading({}, {**FAST_LOADER, "resident_refusal": "KeyError: 'x'"}, data_wait=0.4)
    ).likely
    assert "not proven: the step refused the same batch twice (KeyError: 'x')" in refused.evidence


SHORT = {"kernel_seconds": 5e-6, "short_kernel_seconds": 1e-5, "kernels_per_step": 1000.0}


@pytest.mark.parametrize(
    ("shares", "clues", "figures", "expected"),
    [
        ({"launch_gaps": 0.15, "kernels": 0.85}, SHORT, {}, "launch-bound"),
        ({"launch_gaps": 0.149, "kernels": 0.851}, SHORT, {}, "compute-bound"),
        ({"launch_gaps": 0.5, "kernels": 0.5}, {**SHORT, "kernel_seconds": 1e-4}, {}, None),
        ({"launch_gaps": 0.5, "kernels": 0.5}, SHORT, {"batch": 2}, "under-filled"),
        (
            {"launch_gaps": 0.5, "kernels": 0.5},
            {**SHORT, "repeated_kernel_count": 200.0},
            {"batch": 2},
            "launch-bound",
        ),
        ({"transfer": 0.1, "kernels": 0.9}, {}, {}, "transfer-bound"),
        ({"transfer": 0.09, "kernels": 0.91}, {}, {}, "compute-bound"),
        ({"transfer": 0.02, "kernels": 0.98}, {"pageable_bytes": 1e6}, {}, "transfer-bound"),
        ({"sync_waits": 0.02, "kernels": 0.98}, {"syncs": 1.0}, {}, "sync-bound"),
        ({"sync_waits": 0.019, "kernels": 0.981}, {"syncs": 1.0}, {}, "compute-bound"),
        ({"sync_waits": 0.5, "kernels": 0.5}, {"syncs": 1.0}, {"device": "cpu"}, None),
        ({"kernels": 1.0}, {"memory_capacity_bytes": 100.0}, {"peak_memory_bytes": 90.0}, "memory-tight"),
        ({"kernels": 1.0}, {"memory_capacity_bytes": 100.0}, {"peak_memory_bytes": 89.0}, "compute-bound"),
        ({"kernels": 1.0}, {}, {"reported": {"alloc_retries": 3.0}}, "memory-tight"),
        ({"allocator": 0.2, "kernels": 0.8}, {}, {}, "allocator-bound"),
        ({"other": 0.4, "launch_gaps": 0.0, "kernels": 0.6}, {}, {"device": "cpu"}, "host-bound"),
        ({"other": 0.4, "kernels": 0.6}, {}, {"device": "cpu"}, None),
        # 4 ms of Python for a thousand operators only call them; for a hundred they are the step's own work.
        (
            {"other": 0.4, "launch_gaps": 0.2, "kernels": 0.4},
            SHORT,
            {"device": "cpu", "batch": 2},
            "under-filled",
        ),
        (
            {"other": 0.4, "launch_gaps": 0.2, "kernels": 0.4},
            {**SHORT, "kernels_per_step": 100.0},
            {"device": "cpu", "batch": 2},
            "host-bound",
        ),
        ({"kernels": 0.5, "optimizer": 0.2, "other": 0.3}, {}, {}, "compute-bound"),
        ({}, {}, {}, None),
    ],
)
def test_each_rule_speaks_from_its_threshold_on(shares, clues, figures, expected):
    """A device without shares gets no diagnosis."""
    assert expected == cause(shares, clues, **figures)


def test_python_that_only_calls_operators_counts_as_under_filled_and_as_nothing_else():
    """Both parts of the time belong to the one cause, whose evidence tells them apart."""
    shares = {"other": 0.4, "launch_gaps": 0.2, "kernels": 0.4}
    (only,) = diagnose(reading(shares, SHORT, device="cpu", batch=2)).causes
    assert 0.6 == pytest.approx(only.weight)
    assert only.evidence.startswith("launch gaps 20.0 %, Python that calls operators 40.0 %")


def test_more_workers_than_help_come_before_what_they_cause():
    """Forty workers start slowly and starve at every epoch: their number is the cause."""
    clues = {"num_workers": 40.0, "cores": 20.0, "epoch_wait_share": 1.0, "epoch_steps": 10.0, "epochs": 3.0}
    likely = diagnose(reading({}, clues, data_wait=0.8)).likely
    assert "oversubscribed-workers" == likely.name
    assert "Try num_workers=1 (now 40)" == likely.advice
    assert "data-bound" == cause(
        {}, {**clues, "num_workers": 20.0, "persistent_workers": 1.0, "epoch_wait_share": 0.1}, data_wait=0.8
    )


def test_starving_at_epochs_is_told_with_its_period():
    """Workers that are restarted, and other reasons."""
    clues = {**FAST_LOADER, "epoch_wait_share": 0.8, "epoch_steps": 8.0, "epoch_seconds": 0.5}
    again = diagnose(reading({}, {**clues, "persistent_workers": 0.0}, data_wait=0.3)).likely
    assert "the loader's workers are started again every 8 steps (500 ms)" == again.title
    assert "persistent_workers=True: 2 workers" in again.advice
    assert "starves every 8 steps" in diagnose(reading({}, clues, data_wait=0.3)).likely.title


def test_the_heaviest_cause_comes_first_and_the_others_are_told():
    """By the share of the step each takes."""
    shares = {"data_wait": 0.3, "sync_waits": 0.4, "transfer": 0.12, "kernels": 0.18}
    lines = list(
        explain(
            reading(
                shares, {**FAST_LOADER, "syncs": 2.0, "sync_place": "a.py:3 in f: x.item()"}, data_wait=0.3
            )
        )
    )
    assert lines[1].startswith("likely cause: sync-bound")
    assert "2 a step at a.py:3 in f: x.item()" in lines[1]
    assert ["also: data-bound", "also: transfer-bound"] == [
        line.partition(":")[0] + ":" + line.split(":")[1] for line in lines[3:]
    ]


@given(st.dictionaries(st.sampled_from(list(SHARES)), st.floats(0, 2), min_size=1), st.floats(0, 1))
def test_shares_add_up_whatever_was_seen(shares, waited):
    """To 1, with the data wait that was measured in the window."""
    told = whole(shares)
    if sum(shares.values()) > 0:
        assert pytest.approx(1) == sum(told.values())
    joined = with_data_wait(told, waited)
    assert pytest.approx(1) == sum(joined.values())
    assert waited == joined["data_wait"]


@given(
    st.dictionaries(st.sampled_from(list(SHARES)), st.floats(0, 1)),
    st.floats(0, 1),
    st.integers(0, 64),
    st.floats(0, 10),
)
def test_no_reading_makes_the_diagnosis_stumble(shares, waited, workers, seconds):
    """Whatever a device reports."""
    clues = {"num_workers": float(workers), "batch_seconds": seconds, "resident_step_seconds": seconds}
    for line in explain(reading(shares, clues, data_wait=waited)):
        assert "nan" not in line
