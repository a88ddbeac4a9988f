"""Write fitted rules as perfsuite reads them."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.modelled_gpu.fit import Fitted

_HEAD = """# Fitted on all measured cards by `python -m benchmarks.modelled_gpu DIRECTORY --write=THIS`.
# What each means: rules.py. The errors are medians on the worst card, each left out of every fit in turn.
"""


def write_rules(path: Path, fitted: Fitted, errors: Mapping[str, float]) -> None:
    """Write the rules and their errors."""
    tables = {
        name: table
        for name, table in asdict(fitted.rules).items()
        if isinstance(table, dict) and name != "errors"
    }
    lines = [_HEAD]
    for name, table in {**tables, "errors": dict(sorted(errors.items()))}.items():
        lines += [f"[{name}]", *(f'"{key}" = {value:.4g}' for key, value in table.items()), ""]
    path.write_text("\n".join(lines), "utf-8")
