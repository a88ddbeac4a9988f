"""Print the figures of the package: modules, sizes, which folders import which, cycles, and a reader's walk.

    python scripts/structure.py                 # modules, sizes, edges between folders, cycles
    python scripts/structure.py --walk          # also trace one `perf(step)` from its fixture to the table

Every import counts, also lazy ones inside functions and those for type checkers: a reader follows them too.
The walk reads every function once, in the order in which a real run first enters it, from the perf fixture
to the table. A file that it enters for the first time is *visited*; coming back to one that was left is a
*return*. The vocabulary (the modules at the root: records, metrics, units and their like) is counted apart:
whoever knows a word does not walk to it.
"""

import argparse
import ast
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Graph = Mapping[str, set[str]]


def modules(package: Path) -> dict[str, Path]:
    """Return every module of a package by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Yield everything a file imports, wherever in it, as dotted names of modules or of names inside them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def import_graph(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return which module imports which; a package counts only where a name of its own is taken."""
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for target in imports(path):
            module = target if target in known else target.rpartition(".")[0]
            if module in known and module != name:
                graph[name].add(module)
    return graph


def folder_of(module: str, known: Mapping[str, Path]) -> str:
    """Return the folder a module lies in; the package's own doors stand on top of all of them."""
    package = module.partition(".")[0]
    if module in (package, f"{package}.__main__"):
        return f"{package} (public names, commands)"
    return module if known[module].name == "__init__.py" else module.rpartition(".")[0]


def folder_graph(graph: Graph, known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return which folder imports which."""
    folders: dict[str, set[str]] = {}
    for name, targets in graph.items():
        home = folder_of(name, known)
        folders.setdefault(home, set()).update(
            folder for target in targets if (folder := folder_of(target, known)) != home
        )
    return folders


def cycles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def walk_of(visits: Iterable[str]) -> tuple[int, int]:
    """Return how many files a walk visits and how often it comes back to one it had left."""
    seen: set[str] = set()
    here, returns = "", 0
    for path in visits:
        if path != here:
            returns += path in seen
            seen.add(path)
            here = path
    return len(seen), returns


TRACER = """
import importlib, pkgutil, sys

import pytest

visits, known, inside = [], set(), False

def note(frame, event, _):
    global inside
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(PACKAGE):
        return
    is_function = code.co_flags & 1 and not code.co_name.startswith("<")
    is_start = code.co_code[frame.f_lasti + 1] & 3 == 0  # a hook that goes on after its yield is no new visit
    inside = inside or code.co_name == "perf"
    if inside and is_function and is_start and code not in known:
        known.add(code)
        visits.append(code.co_filename)

def pytest_runtest_setup(item):
    import perfsuite
    for module in pkgutil.walk_packages(perfsuite.__path__, "perfsuite."):  # imports are not on the way
        if "frameworks" not in module.name and "__main__" not in module.name:
            importlib.import_module(module.name)
    sys.setprofile(note)

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary():
    result = yield
    sys.setprofile(None)
    with open(VISITS, "w") as file:
        print(*visits, sep="\\n", file=file)
    return result
"""
TEST = """
def test_a_step(perf):
    perf(lambda: sum(range(10_000)), samples_per_step=1, min_samples_per_s=1)
"""


def trace_walk(package: Path) -> list[str]:
    """Measure one step on the CPU and return the files in the order in which their functions are entered."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        visits = folder / "visits.txt"
        (folder / "tracer.py").write_text(
            TRACER.replace("PACKAGE", repr(f"{package}/")).replace("VISITS", repr(str(visits)))
        )
        (folder / "test_step.py").write_text(TEST)
        command = [sys.executable, "-m", "pytest", "--perf-device=cpu", "-q", "-p", "no:cacheprovider"]
        command += ["--perf-min-time=50 ms", "--perf-max-time=100 ms", "test_step.py"]
        # First stored, so that the walk passes a baseline, then traced.
        for arguments in (
            ["--save-baseline", "--perf-sessions=1"],
            ["--perf", "--perf-tolerance=100 %", "-p", "tracer"],
        ):
            ran = subprocess.run(
                [*command, *arguments],
                cwd=folder,
                check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{folder}:{package.parent}"},
                capture_output=True,
                text=True,
            )
            if ran.returncode:
                sys.exit(f"{ran.stdout}\nthe walk needs a run that passes; try again on a quieter machine")
        return visits.read_text().splitlines()


def is_vocabulary(package: Path, path: str) -> bool:
    """Tell whether a file is one of the words at the root of the package."""
    return Path(path).parent == package and Path(path).stem not in ("__init__", "__main__")


def print_figures(package: Path) -> None:
    """Print sizes, edges and cycles."""
    known = modules(package)
    graph = import_graph(known)
    lengths = {name: len(path.read_text().splitlines()) for name, path in known.items()}
    named = {name: size for name, size in lengths.items() if known[name].name != "__init__.py"}
    importers = Counter(target for targets in graph.values() for target in targets)
    largest = max(named, key=named.__getitem__)
    top = [name for name in known if name.count(".") == 1]
    print(f"{package.name}: {len(named)} modules, {sum(lengths.values()):,} lines")
    print(
        f"  at the root: {sum(name in named for name in top)} modules, "
        f"{sum(path.is_dir() and any(path.glob('*.py')) for path in package.iterdir())} folders"
    )
    print(
        f"  size: median {statistics.median(named.values()):.0f} lines, largest {named[largest]} ({largest})"
    )
    print(
        f"  under 60 lines with a single importer: "
        f"{sum(size < 60 and importers[name] == 1 for name, size in named.items())}"
    )
    print(f"  with exactly one importer: {sum(importers[name] == 1 for name in named)}")
    folders = folder_graph(graph, known)
    print(f"  edges between modules: {sum(map(len, graph.values()))}")
    print(f"  edges between folders: {sum(map(len, folders.values()))}")
    for what, found in (("modules", cycles(graph)), ("folders", cycles(folders))):
        print(f"  cycles between {what}: {len(found)}" + "".join(f"\n    {' ↔ '.join(one)}" for one in found))
    print("  folder → folders it imports")
    for folder, targets in sorted(folders.items()):
        print(f"    {folder:<34} {', '.join(sorted(targets)) or '–'}")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--package", type=Path, default=ROOT / "perfsuite", help="the package (default: perfsuite)"
    )
    parser.add_argument(
        "--walk", action="store_true", help="trace one perf(step) from its fixture to the table"
    )
    parser.add_argument("--visits", action="store_true", help="with --walk: print the files in their order")
    arguments = parser.parse_args()
    package = arguments.package.resolve()
    print_figures(package)
    if arguments.walk:
        visits = trace_walk(package)
        line = [path for path in visits if not is_vocabulary(package, path)]
        print("  walk of perf(step), fixture to table: {} files, {} returns".format(*walk_of(line)))
        print("    with every look at the vocabulary: {} files, {} returns".format(*walk_of(visits)))
        if arguments.visits:
            here = ""
            for path in line:
                if path != here:
                    print(f"    {Path(path).relative_to(package)}")
                here = path


if __name__ == "__main__":
    main()
