"""The figures of cards come from runs, with a margin, and say whether they were predicted or measured."""

import json
import tomllib

import pytest

from perfsuite.devices.model.cards import find_card, load_cards
from scripts import derive_limits
from tests.perf import table
from tests.perf.figures import CardFigures, FigureLimits, card_named, nearest

TEST = "test_tf32_multiplies_faster"


def entry(name=f"{TEST}[gpu]", *, reported=None, failed=False, **values):
    """One reading of a run: 16 samples in steps of 0.1 s."""
    figures = {"samples_per_s": 160.0, "kernel_busy": 0.9, "utilization": 0.8, "peak_memory": 1e9, **values}
    return {
        "fullname": f"tests/perf/test_precision.py::{name}",
        "stats": {"mean": 0.1},
        "extra_info": {
            "perfsuite": {
                "metrics": {metric: {"value": value} for metric, value in figures.items()},
                "reported": reported or {},
                "failed": failed,
                "invalid": [],
            }
        },
    }


@pytest.fixture
def run(tmp_path):
    """Write a run's file and read it."""

    def made(*entries, kind="cuda", name="NVIDIA A10"):
        machine = {"device_kind": kind, "device_name": name, "driver": "550.1", "torch": "2.12.1"}
        machine["device_memory_bytes"] = 24e9
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps({"machine_info": {"perfsuite": machine}, "benchmarks": list(entries)}))
        return derive_limits.Run.from_file(path)

    return made


def rows_of(text):
    return tomllib.loads(text)[TEST]["on"]


def test_a_measured_run_becomes_limits_with_its_margin(run):
    """And says on what it was measured."""
    rows = rows_of(derive_limits.written(f"[{TEST}]\ncuda = {{}}\n", [run(entry())]))
    assert {
        "a10": {
            "from": "measured on NVIDIA A10, driver 550.1, torch 2.12.1",
            "min_busy": 0.81,
            "min_samples_per_s": 136,
            "max_peak_memory": 1_050_000_000,
        }
    } == rows


PREDICTED = {"predicted_step_seconds": 0.04, "predicted_kernel_seconds": 0.03}


def test_an_emulated_run_gives_what_is_predicted_not_what_its_host_took(run):
    """16 samples in 40 ms predicted are 400 per second, however long the busy host took."""
    emulated = run(entry(reported=PREDICTED), kind="emulated-h100", name="NVIDIA H100 emulated")
    (row,) = rows_of(derive_limits.written(f"[{TEST}]\ncuda = {{}}\n", [emulated])).values()
    assert {
        "from": "predicted by emulated:h100, torch 2.12.1",
        "min_busy": 0.45,
        "min_samples_per_s": 200,
        "max_peak_memory": 1_100_000_000,
    } == row


def test_a_brief_step_is_predicted_in_its_memory_only(run):
    """Below a millisecond Python decides; a measured one has all its figures."""
    brief = {"predicted_step_seconds": 5e-4, "predicted_kernel_seconds": 1e-4}
    emulated = run(entry(reported=brief), kind="emulated-a10", name="NVIDIA A10 emulated")
    text = derive_limits.written(f"[{TEST}]\ncuda = {{}}\n", [emulated])
    assert {"from", "max_peak_memory"} == set(rows_of(text)["a10"])
    limits = FigureLimits.from_row("a10", rows_of(text)["a10"], 1.0)
    assert [] == limits.misses(CardFigures(None, None, 1e9))
    assert 1 == len(limits.misses(CardFigures(None, None, 2e9)))


def test_a_real_run_replaces_the_predicted_row_of_its_card_and_no_other(run):
    """One command after the first run on a card; what is written by hand stays."""
    text = f"# by hand\n[{TEST}]\ncuda = {{ min_speedup = 1.15 }}\n"
    a10, h100 = (
        run(entry(reported=PREDICTED), kind=f"emulated-{card}", name=card) for card in ("a10", "h100")
    )
    predicted = derive_limits.written(text, [a10, h100])
    replaced = derive_limits.written(predicted, [run(entry())])
    assert replaced.startswith(text.rstrip())
    assert {"a10": "measured", "h100": "predicted"} == {
        card: row["from"].split()[0] for card, row in rows_of(replaced).items()
    }
    assert rows_of(predicted)["h100"] == rows_of(replaced)["h100"]
    assert replaced == derive_limits.written(replaced, [run(entry())])


def test_a_contract_with_several_cases_is_held_to_the_worst(run):
    """And a test with several readings to the last, which is its optimized variant's."""
    measured = run(
        entry(f"{TEST}[a] (filled)", samples_per_s=1.0),
        entry(f"{TEST}[a] (dropped)", peak_memory=2e9),
        entry(f"{TEST}[b]", samples_per_s=120.0, kernel_busy=0.5),
    )
    assert {TEST: CardFigures(0.5, 120.0, 2e9)} == measured.figures


@pytest.mark.parametrize(
    ("entries", "machine", "words"),
    [
        ([entry()], {"kind": "model-a10"}, "this ran on model-a10; figures of a card come from cuda or"),
        ([entry(failed=True)], {}, "only a green run becomes limits"),
        ([entry("test_other")], {}, "no contract of the suite is in it; run pytest --perf tests/perf"),
        (
            [entry(kernel_busy=None, utilization=None)],
            {},
            f"{TEST} has no busy share; was it measured on a card",
        ),
        ([entry()], {"name": "Voodoo 2"}, "Voodoo 2 is not in the table of cards; add it as"),
    ],
)
def test_what_cannot_become_a_limit_is_refused(run, entries, machine, words):
    """A modelled run of small sizes least of all."""
    with pytest.raises(derive_limits.Refused, match=words):
        run(*entries, **machine)


def test_a_file_that_is_no_run_is_named(tmp_path):
    """With what is wrong with it."""
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(derive_limits.Refused, match=r"run.json: no --perf-json of perfsuite"):
        derive_limits.Run.from_file(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("title", "gigabytes", "name"),
    [
        ("Tesla T4", 15.6, "t4"),
        ("NVIDIA A10", 23.7, "a10"),
        ("NVIDIA A100", 42.3, "a100-40"),
        ("NVIDIA A100", 84.9, "a100-80"),
        ("NVIDIA A100-SXM4-40GB", 42.3, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 84.9, "a100-sxm"),
        ("NVIDIA A100 80GB PCIe", 84.9, "a100-80"),
        ("NVIDIA H100 80GB HBM3", 84.9, "h100"),
        ("NVIDIA H100 PCIe", 84.9, "h100-pcie"),
    ],
)
def test_a_card_is_known_by_nvidia_s_name_for_it(title, gigabytes, name):
    """As torch and the driver give it, with the memory that they leave."""
    assert name == card_named(title, 1e9 * gigabytes).name


def test_a_card_without_a_sheet_has_no_name():
    """It is held to the one most like it in size."""
    assert card_named("Voodoo 2", 8e6) is None


def test_every_gpu_contract_has_figures_on_four_kinds_of_card():
    """Those that run on a card; a T4 has no units for TF32."""
    all_cards = {"t4", "a10", "a100-40", "h100"}
    needed = {test: all_cards for test, kinds in table.load().items() if "cuda" in kinds}
    needed[TEST] = all_cards - {"t4"}
    assert needed == {test: set(rows) & all_cards for test, rows in table.load_figures().items()}


def test_another_card_is_held_to_the_most_similar_one_at_its_own_speed():
    """An L4 has a T4's bandwidth, a V100 is slower than an A100."""
    names = ("t4", "a10", "a100-40", "h100")
    assert [("t4", 1.0), ("h100", 1.0)] == [nearest(find_card(name), names) for name in ("t4", "h100")]
    for card in load_cards().values():
        name, speed = nearest(card, names)
        assert 0 < speed <= 1
        assert name in names
    assert "a10" == nearest(find_card("l4"), names)[0]
    assert nearest(find_card("l4"), names)[1] == pytest.approx(300e9 / 600e9)


LIMITS = FigureLimits("a10", "predicted by emulated:a10", 0.5, 100.0, 2.0**30)


def test_figures_at_their_limits_hold():
    """The bound itself is allowed, on a slower card its share of the speed."""
    assert [] == LIMITS.misses(CardFigures(0.5, 100.0, 2.0**30))
    assert [] == LIMITS._replace(speed=0.5).misses(CardFigures(0.5, 50.0, 2.0**30))


def test_each_figure_beyond_its_limit_is_named_with_where_the_limit_comes_from():
    """Predicted limits never pass for measured ones."""
    misses = LIMITS.misses(CardFigures(0.49, None, 2.0**31))
    assert [
        "busy share 49.0 % is below the 50.0 % expected by the table for a10 (predicted by emulated:a10)",
        "samples/s was not measured, but held against the 100 expected by the table for a10 "
        "(predicted by emulated:a10)",
        "peak memory 2 GiB is above the 1 GiB expected by the table for a10 (predicted by emulated:a10)",
    ] == misses
