"""Trainings on the emulated card beside the modelled one: python -m benchmarks.emulated_table

Each training's step is counted on both, and a table says where they agree. The emulated half needs a CUDA
build of torch and is stored (emulated.json); without one the stored half is taken.

  --fresh             count on the emulated card now; a child process is started on it
  --python PATH       the interpreter that has torch's CUDA build, if it is another
  --store             fresh, and keep it
  --markdown PATH     write the table there (docs/emulated-counts.md)
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.emulated_table import table

ROOT = Path(__file__).parents[2]


def count_emulated(python: str, titles: Sequence[str] = ()) -> table.Half:
    """Count on an emulated A10 in a child process that the project's own launcher starts.

    Without torch in this process: a CUDA build may find its libraries on an emulated card alone.
    """
    child = [python, "-m", "benchmarks.emulated_table", "--child", *titles]
    command = [python, "-m", "perfsuite", "emulate", "a10", "--", *child]
    paths = (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ran = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"the emulated half failed:\n{ran.stderr[-2000:]}")
    return table.Half.from_json(ran.stdout.splitlines()[-1])


def count_modelled(titles: Sequence[str] = ()) -> table.Half:
    """Count on a modelled A10 in this process."""
    import torch

    from benchmarks.emulated_table.counting import TRAININGS, modelled

    torch.set_num_threads(1)
    found = {title: modelled(title).row() for title in titles or TRAININGS}
    return table.Half(torch.__version__, found)


def _child(titles: Sequence[str]) -> None:
    import torch

    from benchmarks.emulated_table.counting import TRAININGS, emulated

    found = {title: emulated(title).row() for title in titles or TRAININGS}
    print(json.dumps({"torch": torch.__version__, "trainings": found}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a training disagrees that no reason names."""
    parser = argparse.ArgumentParser(prog="benchmarks.emulated_table", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("titles", nargs="*", help="some trainings only")
    asked = parser.parse_args(arguments)
    if asked.child:
        _child(asked.titles)
        return 0
    is_fresh = asked.fresh or asked.store
    left = count_emulated(asked.python, asked.titles) if is_fresh else table.Half.stored()
    if asked.store:
        left.store()
    found = table.compare(left, count_modelled(asked.titles))
    print(table.render(found))
    if asked.markdown:
        asked.markdown.write_text(table.document(found, left.torch), encoding="utf-8")
    return int(any(not row.is_equal and not row.reason for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
