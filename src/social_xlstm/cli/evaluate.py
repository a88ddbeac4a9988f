"""`social-xlstm evaluate`: errors of a finished or running training's weights, on any part or other data."""

import argparse
import json

from social_xlstm import config_file
from social_xlstm.cli import run_folder as folders
from social_xlstm.cli.arguments import overrides
from social_xlstm.cli.report import draw, measure, minutes_per_step
from social_xlstm.cli.results import table, write_json
from social_xlstm.cli.run_folder import RunFolder
from social_xlstm.data.scaler import Scaler
from social_xlstm.errors import InputError
from social_xlstm.train import checkpoint, snapshot
from social_xlstm.train.assemble import assemble


def run(arguments: argparse.Namespace) -> int:
    """Load the weights, measure them on a part, print and write the result."""
    folder = RunFolder.from_name(arguments.run)
    config = config_file.load(folder.path / folders.CONFIG, overrides(arguments))
    if getattr(config.data.split, arguments.part) == 0:
        raise InputError(f"the {arguments.part} part is empty; raise data.split.{arguments.part} with --set")
    saved = checkpoint.load(folder.path / f"{arguments.checkpoint}.pt")
    assembly = assemble(config, scaler=Scaler.from_state_dict(saved.about.get("scaler", {})))
    folders.check_same_detectors(saved, assembly.prepared)
    snapshot.load_weights(assembly.model, saved)
    measured = measure(assembly, arguments.part)
    result = {**measured.nested(), "checkpoint": arguments.checkpoint, "data": config.data.path}
    write_json(folder.path / f"evaluation-{arguments.part}.json", result)
    if not arguments.no_plot:
        draw(assembly, measured, folder.path / f"forecast-{arguments.part}.png")
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{folder.path}, {arguments.checkpoint} weights, {arguments.part} part of {config.data.path}:")
        print(table(measured.model, measured.copy_last, assembly.prepared.units, minutes_per_step(assembly)))
    return 0
