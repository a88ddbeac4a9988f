"""`social-xlstm convert`: bring a foreign file into the layout."""

import argparse

from social_xlstm.data.convert import ConvertOptions, convert_file


def run(arguments: argparse.Namespace) -> int:
    """Read the foreign file, write ours, and print what was found."""
    names = ("locations", "start", "frequency", "timestamps_column", "group", "feature", "unit")
    options = ConvertOptions(
        **{name: getattr(arguments, name) for name in names}, zeros_are_missing=arguments.zeros_are_missing
    )
    traffic = convert_file(arguments.source, arguments.output, options)
    steps, detectors, _ = traffic.features.shape
    print(f"wrote {arguments.output}: {steps:,} steps × {detectors:,} detectors of {arguments.feature}")
    if traffic.positions is None:
        print("without positions: give --locations, or train with --set social_pooling.enabled=false")
    print(f"next: social-xlstm inspect {arguments.output}")
    return 0
