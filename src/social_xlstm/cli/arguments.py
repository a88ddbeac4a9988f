"""The commands, their options, and help that teaches by example."""

import argparse

_EXAMPLES = """\
from nothing to a trained model, in two commands:
  social-xlstm synth
  social-xlstm train

with your own data:
  social-xlstm convert speeds.csv --locations sensors.csv --output la.h5
  social-xlstm inspect la.h5
  social-xlstm train --data la.h5 --set trainer.max_epochs=20
  social-xlstm evaluate runs/social-xlstm-001

`social-xlstm <command> --help` explains each.
"""

_SYNTH = """\
examples:
  social-xlstm synth                               a small set, data.h5, in a second
  social-xlstm synth --pems-bay --output bay.h5    325 detectors, 52,116 steps of 5 minutes
  social-xlstm synth --features speed flow occupancy --missing 0.05 --seed 7
  social-xlstm synth --steps 8064 --shard-steps 2016 --output shards/    a folder read as one set
"""

_CONVERT = """\
examples:
  social-xlstm convert metr-la.h5 --locations graph_sensor_locations.csv --output la.h5
  social-xlstm convert los_speed.csv --locations metr_la.csv --start "2012-03-01 00:00:00" --output los.h5

CSV: the header names the detectors, a row is a step. HDF5: a frame as pandas writes it (METR-LA, PEMS-BAY).
Locations: a CSV with sensor id, latitude, longitude. Without it, train with social_pooling.enabled=false.
"""

_INSPECT = """\
examples:
  social-xlstm inspect data.h5
  social-xlstm inspect shards/ --json
"""

_TRAIN = """\
examples:
  social-xlstm train                                  the small shipped configuration on data.h5
  social-xlstm train --config configs/reference.yaml --data bay.h5
  social-xlstm train --set trainer.precision=bf16-mixed --set data.loader.batch_size=128
  social-xlstm train --resume                         continue the latest run exactly where it was
  social-xlstm train --resume runs/social-xlstm-001 --set trainer.max_epochs=40
  torchrun --nproc-per-node 4 -m social_xlstm train   one process for each of four GPUs
  torchrun --standalone --nproc-per-node 4 --max-restarts 3 -m social_xlstm train    restarted if one dies

a run's folder holds config.yaml, last.pt, best.pt, epochs.csv (a row per epoch), results.json (errors on
the test part in real units, beside those of copying the last value) and forecast.png. Ctrl-C saves last.pt
and says how to resume. With --config, keys the file does not name have the reference values (width 128, six
blocks), not those of the small shipped configuration.
"""

_EVALUATE = """\
examples:
  social-xlstm evaluate runs/social-xlstm-001
  social-xlstm evaluate runs/social-xlstm-001 --part val --checkpoint last --json
  social-xlstm evaluate runs/social-xlstm-001 --data next_month.h5 --set data.split.train=0.1
"""


def build_parser() -> argparse.ArgumentParser:
    """Describe the five commands."""
    parser = argparse.ArgumentParser(
        prog="social-xlstm",
        description="Forecast traffic at many detectors with xLSTM and social pooling.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_synth(_command(commands, "synth", "make a synthetic data set", _SYNTH))
    _add_convert(_command(commands, "convert", "turn a CSV or pandas-written file into the layout", _CONVERT))
    _add_inspect(_command(commands, "inspect", "check a data set and show what is in it", _INSPECT))
    _add_train(_command(commands, "train", "train a model, or continue a run", _TRAIN))
    _add_evaluate(_command(commands, "evaluate", "measure a run's model in real units", _EVALUATE))
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, purpose: str, examples: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_synth(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--output", default="data.h5", metavar="FILE", help="file to write (default: %(default)s)")
    add("--pems-bay", action="store_true", help="the size of PEMS-BAY: 325 detectors, 52,116 steps")
    add("--detectors", type=int, metavar="N", help="number of detectors (default: 48)")
    add("--steps", type=int, metavar="T", help="number of steps (default: 4032, two weeks)")
    add(
        "--features",
        nargs="+",
        default=["speed"],
        metavar="NAME",
        help="speed, flow, occupancy (default: speed)",
    )
    add(
        "--missing",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="share of missing values (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="another seed, another set (default: %(default)s)")
    add("--shard-steps", type=int, metavar="T", help="write a folder of shards of so many steps")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", help="CSV of values, or HDF5 file written by pandas")
    add("--output", default="data.h5", metavar="FILE", help="file to write (default: %(default)s)")
    add("--locations", metavar="CSV", help="sensor id, latitude and longitude of each detector")
    add("--start", metavar="TIME", help="time of the first row, where the file has no times")
    add("--frequency", default="5min", help="step, where the file has no times (default: %(default)s)")
    add("--timestamps-column", metavar="NAME", help="CSV column that holds the times, if not found by itself")
    add("--group", metavar="NAME", help="HDF5 group of the frame, if the file has several")
    add("--feature", default="speed", metavar="NAME", help="what the values are (default: %(default)s)")
    add("--unit", default="mph", help="their unit (default: %(default)s)")
    add("--zeros-are-missing", action="store_true", help="read 0 as «not measured», as METR-LA means it")


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="?", default="data.h5", help="file, or folder of shards (default: %(default)s)")
    add("--json", action="store_true", help="print JSON instead of text")


def _add_train(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="YAML", help="configuration (default: the shipped small one)")
    _add_changes(parser)
    add(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="continue a run's folder; without a name the latest",
    )
    add("--progress", choices=("auto", "bar", "lines", "off"), default="auto",
        help="a bar on a terminal, lines elsewhere (default: %(default)s)")  # fmt: skip
    add("--no-plot", action="store_true", help="do not draw forecast.png")


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", help="a run's folder, or a checkpoint in it")
    add(
        "--part",
        choices=("train", "val", "test"),
        default="test",
        help="what to measure on (default: %(default)s)",
    )
    add("--checkpoint", choices=("best", "last"), default="best", help="which weights (default: %(default)s)")
    _add_changes(parser)
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--no-plot", action="store_true", help="do not draw forecast-<part>.png")


def overrides(arguments: argparse.Namespace) -> list[str]:
    """Return the changes to the configuration, with --data as one of them."""
    if arguments.data is None:
        return list(arguments.overrides)
    # Quoted for YAML, where `a: b` or `[x]` would be something else than a path.
    quoted = "'" + arguments.data.replace("'", "''") + "'"
    return [*arguments.overrides, f"data.path={quoted}"]


def _add_changes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", metavar="PATH", help="data set; the same as --set data.path=PATH")
    add("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE",
        help="change one configuration key, for example optimizer.lr=1e-4; may be repeated")  # fmt: skip
