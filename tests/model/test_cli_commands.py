"""Help, data commands, progress, the run's folder and the plot."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from social_xlstm import config_file
from social_xlstm.cli import main, plot
from social_xlstm.cli.arguments import build_parser
from social_xlstm.cli.progress import Bar, Lines, Silent, build_progress, epoch_line
from social_xlstm.cli.results import table, write_json, write_rows
from social_xlstm.cli.run_folder import RunFolder, check_unchanged
from social_xlstm.config import Config
from social_xlstm.errors import InputError
from social_xlstm.train.evaluate import Forecast
from social_xlstm.train.metrics import ErrorSums
from social_xlstm.train.speed import Speedometer
from social_xlstm.train.state import FitState

COMMANDS = ("synth", "convert", "inspect", "train", "evaluate")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command's help shows how it is used."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert 0 == ended.value.code
    assert f"examples:\n  social-xlstm {command}" in text


def test_examples_in_the_help_can_be_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    """No example in any help text is out of date."""
    texts = []
    for arguments in (["--help"], *([command, "--help"] for command in COMMANDS)):
        with pytest.raises(SystemExit):
            main(arguments)
        texts.append(capsys.readouterr().out)
    lines = [line.strip() for line in "\n".join(texts).splitlines()]
    examples = [shlex.split(line.split("    ")[0])[1:] for line in lines if line.startswith("social-xlstm ")]
    assert len(examples) > 15
    for example in examples:
        if example[0] in COMMANDS:
            assert example[0] == build_parser().parse_args(example).command


def test_help_does_not_wait_for_torch() -> None:
    """`--help` and wrong options answer without importing torch."""
    code = (
        "import sys; from social_xlstm.cli import main\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    assert 0 == subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode


@pytest.mark.parametrize("arguments", [[], ["fly"], ["train", "--epochs", "3"], ["synth", "--steps", "many"]])
def test_wrong_options_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown commands and options are usage errors."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert 2 == ended.value.code
    assert "usage:" in capsys.readouterr().err


def test_synth_inspect_and_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A set is written, named in the next command, and described the same in one file or in shards."""
    monkeypatch.chdir(tmp_path)
    size = ["--detectors", "6", "--steps", "300", "--features", "speed", "flow"]
    assert 0 == main(["synth", *size])
    assert "next: social-xlstm train\n" in capsys.readouterr().out
    assert 0 == main(["synth", *size, "--output", "parts", "--shard-steps", "100"])
    assert "next: social-xlstm train --data parts" in capsys.readouterr().out
    found = []
    for path in ("data.h5", "parts"):
        assert 0 == main(["inspect", path, "--json"])
        found.append({**json.loads(capsys.readouterr().out), "path": ""})
    assert found[0] == found[1]
    assert (300, 6, "5min") == (found[0]["steps"], found[0]["detectors"], found[0]["frequency"])
    assert 0 == main(["inspect"])
    text = capsys.readouterr().out
    for part in ("data.h5: 300 steps × 6 detectors", "mph, mean", "neighbours within 2 km"):
        assert part in text


def test_convert_says_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CSV of speeds with locations becomes a set; without locations the way out is named."""
    monkeypatch.chdir(tmp_path)
    Path("speeds.csv").write_text("a,b\n" + "60.5,61\n" * 40)
    Path("sites.csv").write_text("sensor_id,latitude,longitude\na,34.1,-118.2\nb,34.11,-118.2\n")
    start = ["--start", "2012-03-01 00:00:00"]
    assert 0 == main(["convert", "speeds.csv", "--locations", "sites.csv", *start, "--output", "x.h5"])
    assert "wrote x.h5: 40 steps × 2 detectors of speed" in capsys.readouterr().out
    assert 0 == main(["convert", "speeds.csv", *start, "--output", "y.h5"])
    assert "train with --set social_pooling.enabled=false" in capsys.readouterr().out
    assert 0 == main(["inspect", "y.h5"])
    assert "positions  none" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """`social-xlstm inspect | head -1` ends in silence."""
    assert 0 == main(["synth", "--detectors", "3", "--steps", "300", "--output", str(tmp_path / "d.h5")])
    command = f"{sys.executable} -m social_xlstm inspect {tmp_path / 'd.h5'} --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "" == done.stderr


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def batches(clock: Clock, waits: list[float]) -> Any:
    for wait in waits:
        clock.now += wait
        yield SimpleNamespace(features=torch.zeros(4, 1, 1, 1))


def test_the_speedometer_tells_waiting_from_working() -> None:
    """Time until a batch is there is waiting; the rest is work; windows count over all processes."""
    clock = Clock()
    speed = Speedometer(world_size=2, clock=clock)
    assert (None, None) == (speed.samples_per_s, speed.data_wait_share)
    for _ in speed.wrap_loader(batches(clock, [1.0, 2.0, 1.0])):
        clock.now += 1.0  # the step
    assert (7.0, 24 / 7, 4 / 7) == (speed.seconds, speed.samples_per_s, speed.data_wait_share)
    speed.on_train_end(FitState())
    clock.now += 100.0  # validation
    assert 7.0 == speed.epoch_columns(FitState())["seconds"]


def test_detector_batches_are_counted_by_windows() -> None:
    """A dict of detectors holds as many windows as each of its tensors."""
    clock = Clock()
    speed = Speedometer(clock=clock)
    one = SimpleNamespace(features={"a": torch.zeros(5, 1, 1), "b": torch.zeros(5, 1, 1)})
    list(speed.wrap_loader([one]))
    clock.now = 1.0
    assert 5.0 == speed.samples_per_s


ROW = {"epoch": 2, "train_loss": 0.5, "val_loss": None, "val_mae_speed": 1.5, "val_rmse_speed": 2.0,
       "samples_per_s": 1234.5, "data_wait_share": 0.031}  # fmt: skip


def test_lines_show_pace_and_eta() -> None:
    """Piped, an epoch is one line with loss, error, samples/s, data wait and ETA; long epochs speak up."""
    clock, out = Clock(), io.StringIO()
    lines = Lines(Speedometer(clock=clock), out, clock)
    lines.on_fit_start(FitState(epoch=1), 10, 4)
    lines.on_log(FitState(epoch=1, updates=3), 0.25)
    clock.now = 30.0
    lines.on_log(FitState(epoch=1, updates=5), 0.25)
    lines.on_epoch_end(FitState(epoch=2), ROW)
    assert [
        "epoch 2/4, step 5: loss 0.2500, no speed yet",
        "epoch 2/4: train loss 0.5000, val loss —, speed MAE 1.500, 1,234 samples/s, data wait 3%, ETA 01:00",
    ] == out.getvalue().splitlines()


def test_the_bar_shows_pace_and_eta() -> None:
    """On a terminal, one bar over all epochs shows loss, samples/s, data wait and ETA."""
    clock, out = Clock(), io.StringIO()
    speed = Speedometer(clock=clock)
    bar = Bar(speed, out)
    bar.on_fit_start(FitState(epoch=1, groups_done=2, accumulate=2), 10, 3)
    list(speed.wrap_loader([SimpleNamespace(features=torch.zeros(4, 1, 1, 1))]))
    clock.now = 2.0
    bar.on_step(FitState(epoch=1), torch.zeros(()))
    bar.on_log(FitState(epoch=1), 0.125)
    bar.on_message("torch.compile took effect")
    bar.on_epoch_end(FitState(epoch=2), ROW)
    bar.on_fit_end(FitState(epoch=2))
    text = out.getvalue()
    for part in (
        "epoch 2/3",
        "15/30 batches",
        "loss 0.1250, 2 samples/s, data wait 0%",
        "ETA",
        "took effect",
        "speed MAE",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("kind", "expected"), [("bar", Bar), ("lines", Lines), ("off", Silent), ("auto", Lines)]
)
def test_progress_follows_the_wish_or_the_terminal(
    kind: str, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` draws no bar into a pipe."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert expected is type(build_progress(kind, Speedometer()))


def test_an_epoch_without_validation_is_still_a_line() -> None:
    """What was not measured is not shown."""
    assert "epoch 1/1: train loss —, no speed yet" == epoch_line({"epoch": 1, "train_loss": None}, 1)


def test_runs_are_numbered_and_found_again(tmp_path: Path) -> None:
    """Each run takes the next number, the latest is the highest, and foreign folders do not count."""
    config = config_file.parse(f"experiment: {{name: a.b, output_dir: {tmp_path}/deep/runs}}")
    with pytest.raises(InputError, match="no run to resume"):
        RunFolder.latest(config)
    names = [RunFolder.create(config).path.name for _ in range(2)]
    assert ["a.b-001", "a.b-002"] == names
    for other in ("a.b-x", "axb-007", "a.b-010"):
        (tmp_path / "deep/runs" / other).mkdir()
    assert "a.b-010" == RunFolder.latest(config).path.name
    assert "a.b-011" == RunFolder.create(config).path.name


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("trainer.max_epochs=9", True), ("trainer.early_stop_patience=9", True), ("optimizer.lr=0.5", True),
        ("data.path=b.h5", True), ("data.loader.num_workers=3", True), ("experiment.name=b", True),
        ("trainer.precision=16-mixed", False), ("data.stride=2", False), ("experiment.seed=3", False),
        ("data.loader.batch_size=3", False), ("social_pooling.radius=3", False),
    ],
)  # fmt: skip
def test_what_a_resumed_run_may_change(override: str, allowed: bool) -> None:
    """Only keys that do not decide what was learnt so far."""
    changed = config_file.parse("", [override])
    if allowed:
        check_unchanged(Config(), changed)
    else:
        with pytest.raises(InputError, match=override.partition("=")[0]):
            check_unchanged(Config(), changed)


def test_rows_and_json_are_plain(tmp_path: Path) -> None:
    """«Not measured» is an empty cell or null, and nothing is left beside the file."""
    write_rows(tmp_path / "e.csv", [{"epoch": 1, "val": None}, {"epoch": 2, "val": 0.5, "new": 1}])
    assert "epoch,val,new\n1,,\n2,0.5,1\n" == (tmp_path / "e.csv").read_text().replace("\r", "")
    write_json(tmp_path / "r.json", {"a": None})
    assert {"a": None} == json.loads((tmp_path / "r.json").read_text())
    assert {"e.csv", "r.json"} == {path.name for path in tmp_path.iterdir()}


def forecast(windows: int = 30, detectors: int = 4, observed: float = 0.9) -> Forecast:
    rng = np.random.default_rng(0)
    actual = 60 + 5 * rng.standard_normal((windows, 3, detectors, 1)) * np.arange(1, detectors + 1)[:, None]
    error = rng.standard_normal(actual.shape) * np.arange(detectors, 0, -1)[:, None]
    return Forecast(actual + error, actual, rng.random(actual.shape) < observed)


def metrics(collected: Forecast) -> Any:
    sums = ErrorSums(3, 1, "cpu")
    sums.add(*(torch.from_numpy(x) for x in (collected.predicted, collected.actual, collected.observed)))
    return sums.read(["speed"])


def test_the_table_has_a_line_per_step() -> None:
    """Steps ahead in minutes, then all together, beside copying the last value."""
    found = metrics(forecast())
    lines = table(found, found, {"speed": "mph"}, 5.0).splitlines()
    assert ["speed in", "5 min ahead", "10 min ahead", "15 min ahead", "all steps"] == [
        " ".join(line.split()[:n]) for line, n in zip(lines, (2, 3, 3, 3, 2), strict=True)
    ]
    assert "—" in table(metrics(forecast(observed=0.0)), found, {}, None)


def test_a_typical_a_hard_and_a_changeable_detector_are_drawn() -> None:
    """Each is shown once, also where there are fewer detectors than places."""
    collected = forecast()
    errors = plot.detector_errors(collected)
    chosen = dict(plot.choose_detectors(collected, errors))
    assert ["typical", "hardest", "changeable"] == list(chosen.values())
    assert (0, 3) == (int(np.argmax(errors)), next(i for i, why in chosen.items() if why == "changeable"))
    assert 1 == len(plot.choose_detectors(forecast(detectors=1), plot.detector_errors(forecast(detectors=1))))
    nothing = forecast(observed=0.0)
    assert [] == plot.choose_detectors(nothing, plot.detector_errors(nothing))


@pytest.mark.parametrize(
    ("observed", "windows", "detectors", "placed"),
    [(0.9, 30, 4, True), (0.0, 30, 4, False), (1.0, 1, 1, True)],
)
def test_the_plot_is_drawn_whatever_is_missing(
    observed: float, windows: int, detectors: int, placed: bool, tmp_path: Path
) -> None:
    """Gaps in values and time, one window, one detector, no positions: a picture, no warning."""
    collected = forecast(windows, detectors, observed)
    start = np.datetime64("2017-01-01T00:00:00") + np.arange(windows) * np.timedelta64(300, "s")
    start[windows // 2 :] += np.timedelta64(7200, "s")
    figure = plot.draw_forecast(
        collected,
        times=[first + np.arange(3) * np.timedelta64(300, "s") for first in start],
        vdids=[f"vd{i}" for i in range(detectors)],
        feature="speed",
        unit="mph",
        positions_xy=torch.rand(detectors, 2, dtype=torch.float64) * 1e4 if placed else None,
        model=metrics(collected),
        copy_last=metrics(collected),
        minutes_per_step=5.0,
    )
    plot.save(figure, tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 10_000
