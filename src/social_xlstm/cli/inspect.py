"""`social-xlstm inspect`: validate a set and show what a training would find in it."""

import argparse
import json
from dataclasses import asdict

from social_xlstm.data.inspect import summarize_file


def run(arguments: argparse.Namespace) -> int:
    """Read the set, which validates it, and print its summary."""
    summary = summarize_file(arguments.path)
    print(json.dumps(asdict(summary), indent=2) if arguments.json else summary.render())
    return 0
