"""Whether the contracts keep their word on a loaded machine: python -m benchmarks.loaded

In every round, beside processes that burn a core each: all contracts must hold as they are, and all must
break with their optimization switched off. What pytest printed stays in .benchmarks/loaded.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LOGS = Path(".benchmarks", "loaded")
_BURN = "while True: pass"
_HOLD = ("--perf", "tests/perf", "-m", "contract", "-q", "-p", "no:cacheprovider")
_BREAK = ("tests/suite/test_sabotage.py", "-k", "every_contract_breaks", "-q", "-p", "no:cacheprovider")


@contextlib.contextmanager
def burning(cores: int) -> Iterator[None]:
    """Keep some cores busy meanwhile."""
    fires = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(cores)]
    try:
        yield
        out = sum(fire.poll() is not None for fire in fires)
        if out:
            raise SystemExit(f"{out} of {cores} burning processes ended before the run: it was not loaded")
    finally:
        for fire in fires:
            fire.kill()
            fire.wait()


def run(arguments: tuple[str, ...], log: Path) -> tuple[bool, str]:
    """Run pytest beside what burns; return whether it ended well, and its last line."""
    with log.open("w", encoding="utf-8") as out:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            env=os.environ | {"PERFSUITE_SABOTAGE": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    printed = log.read_text(encoding="utf-8").rstrip().splitlines() or ["nothing"]
    return ran.returncode == 0, printed[-1].strip("= ")


def failures(log: Path) -> list[str]:
    """Return the tests that pytest's closing list says failed."""
    found = re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(encoding="utf-8"), re.MULTILINE)
    return [str(name) for name in found]


def main() -> None:
    """Run the rounds and say how each went; the exit code is 1 if one was not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds in a row (default: 3)")
    parser.add_argument("--cores", type=int, default=1, help="how many processes burn a core (default: 1)")
    asked = parser.parse_args()
    _LOGS.mkdir(parents=True, exist_ok=True)
    is_well = True
    for number in range(1, asked.rounds + 1):
        for what, arguments in (("as they are", _HOLD), ("sabotaged", _BREAK)):
            log = _LOGS / f"round-{number}-{what.replace(' ', '-')}.txt"
            started = time.monotonic()
            with burning(asked.cores):
                went_well, said = run(arguments, log)
            seconds = time.monotonic() - started
            verdict = "as expected" if went_well else "NOT AS EXPECTED"
            print(f"round {number}, {what}: {verdict}, {seconds:.0f} s: {said}", flush=True)
            for name in failures(log):
                print(f"  {name}, see {log}", flush=True)
            is_well &= went_well
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
