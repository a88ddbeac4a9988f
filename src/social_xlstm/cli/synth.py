"""`social-xlstm synth`: write a synthetic set and print the next command."""

import argparse
from dataclasses import replace

from social_xlstm.data.synthetic import SyntheticOptions, synth_file
from social_xlstm.errors import InputError

_SMALL_DETECTORS, _SMALL_STEPS = (
    48,
    4032,
)  # learnt from in a minute; the generator's own defaults are PEMS-BAY's


def run(arguments: argparse.Namespace) -> int:
    """Generate and write the set."""
    if arguments.pems_bay and (arguments.detectors is not None or arguments.steps is not None):
        raise InputError("--pems-bay sets detectors and steps itself; leave --detectors and --steps out")
    options = SyntheticOptions(
        features=tuple(arguments.features), missing_share=arguments.missing, seed=arguments.seed
    )
    if not arguments.pems_bay:
        options = replace(
            options,
            detectors=_SMALL_DETECTORS if arguments.detectors is None else arguments.detectors,
            steps=_SMALL_STEPS if arguments.steps is None else arguments.steps,
        )
    traffic = synth_file(arguments.output, options, steps_per_shard=arguments.shard_steps)
    steps, detectors, features = traffic.features.shape
    print(f"wrote {arguments.output}: {steps:,} steps × {detectors:,} detectors × {features} feature(s)")
    named = "" if arguments.output == "data.h5" else f" --data {arguments.output}"
    print(f"next: social-xlstm train{named}")
    return 0
