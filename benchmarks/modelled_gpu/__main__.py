"""How far the modelled kernel times are from measured ones: `python -m benchmarks.modelled_gpu DIRECTORY`.

DIRECTORY holds gpu_op_times/ and gpu_model_times/ (NeuSight's and DeepBench's measurements). With --write the
constants fitted on all cards, and the errors on cards that were left out, become perfsuite's rules.toml.
"""

import argparse
from pathlib import Path

from benchmarks.modelled_gpu.fit import fit
from benchmarks.modelled_gpu.tables import print_kernels, worst_errors
from benchmarks.modelled_gpu.truth import all_groups
from benchmarks.modelled_gpu.whole_models import compare, print_models
from benchmarks.modelled_gpu.write import write_rules


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--write", type=Path, help="the rules.toml to write")
    arguments = parser.parse_args()
    groups = all_groups(arguments.directory)
    left_out = {
        card: fit([group for group in groups if group.card != card])
        for card in sorted({group.card for group in groups})
    }
    print_kernels(groups, left_out)
    print_models(list(compare(arguments.directory, left_out)))
    if arguments.write:
        write_rules(arguments.write, fit(groups), worst_errors(groups, left_out))


if __name__ == "__main__":
    main()
