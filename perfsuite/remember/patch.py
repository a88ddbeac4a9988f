"""Write new baselines as a patch for `git apply`, and check such a patch before it is applied."""

import difflib
import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from perfsuite.environment import Environment
from perfsuite.errors import PerfsuiteError
from perfsuite.remember import files as baselines
from perfsuite.remember.schema import check_baseline, read_json

MAX_PATCH_BYTES, MAX_FILES = 20_000_000, 1_000
_SAFE_PATH = re.compile(r"[A-Za-z0-9._\[\]=,+-]+(?:/[A-Za-z0-9._\[\]=,+-]+)*\Z")
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_APPLY_SECONDS = 60


class PatchRefused(PerfsuiteError):
    """A patch that must not be applied."""


def render(files: Mapping[str, tuple[str | None, str]]) -> str:
    """Return a patch for path → (old text or None, new text), without unchanged files."""
    parts: list[str] = []
    for path, (before, after) in sorted(files.items()):
        if before == after:
            continue
        parts.append(f"diff --git a/{path} b/{path}\n")
        if before is None:
            parts.append("new file mode 100644\n")
        old = "/dev/null" if before is None else f"a/{path}"
        parts += difflib.unified_diff(_lines(before or ""), _lines(after), old, f"b/{path}")
    return "".join(parts)


def _lines(text: str) -> list[str]:
    # Split at line feeds only: a name may contain characters that are line breaks to Python, but not to git.
    return [f"{line}\n" for line in text.split("\n")[:-1]]


def of_documents(documents: Mapping[str, Mapping[str, Any]], directory: Path, root: Path) -> str:
    """Return the patch that stores documents below the directory, with paths relative to the repository."""
    top = repository(root)
    if not directory.resolve().is_relative_to(top):
        raise PatchRefused(f"{directory} is outside of the repository {top}: a patch cannot reach it")
    files: dict[str, tuple[str | None, str]] = {}
    for test, document in documents.items():
        check_baseline(document)
        key = Environment.from_stored(document["environment"]).key
        path = baselines.path_for(directory.resolve(), key, test)
        before = path.read_text(encoding="utf-8") if path.is_file() else None
        files[path.relative_to(top).as_posix()] = (before, baselines.render(document))
    return render(files)


def repository(root: Path) -> Path:
    """Return the top folder of the git repository, or the root itself if there is none."""
    for folder in (root.resolve(), *root.resolve().parents):
        if (folder / ".git").exists():
            return folder
    return root.resolve()


def check_patch(path: Path, directory: PurePosixPath, root: Path, *, is_applied: bool = False) -> list[str]:
    """Return what a patch stores, or refuse it: it may only contain valid baselines at their proper paths."""
    try:
        if path.stat().st_size > MAX_PATCH_BYTES:
            raise PatchRefused(
                f"it is {path.stat().st_size:,} bytes long, at most {MAX_PATCH_BYTES:,} are read"
            )
        text = path.read_bytes().decode("utf-8")
        touched = list(dict.fromkeys(_touched(text, directory)))
        if not 1 <= len(touched) <= MAX_FILES:
            raise PatchRefused(f"it touches {len(touched)} files, 1 to {MAX_FILES} are allowed")
        created = set(_created(text))
        return _applied_to_copy(path.resolve(), touched, created, directory, root, is_applied=is_applied)
    except (OSError, UnicodeDecodeError, PatchRefused) as error:
        raise PatchRefused(
            f"patch {path} is refused: {error}; store baselines with pytest --save-baseline --perf-patch"
        ) from None


def _touched(text: str, directory: PurePosixPath) -> Iterable[str]:
    """Yield the files of a patch; a line that render() would not write is refused."""
    current = ""
    for line in text.split("\n"):
        if line.startswith("diff --git "):
            halves = line.removeprefix("diff --git ").split(" ")
            current = halves[0].removeprefix("a/")
            if halves != [f"a/{current}", f"b/{current}"]:
                raise PatchRefused(f"{line[:80]!r} names two files")
            _check_path(current, directory)
            yield current
        elif line.startswith(("--- ", "+++ ")) and not _is_header_of(line, current):
            raise PatchRefused(f"{line[:80]!r} is not the file of its section ({current})")
        elif not (
            line in ("", "new file mode 100644") or line.startswith((" ", "+", "-")) or _HUNK.match(line)
        ):
            raise PatchRefused(f"{line[:80]!r} does not belong in a patch of baselines")


def _created(text: str) -> Iterable[str]:
    """Yield the files that a patch creates, whether or not they exist here."""
    lines = text.split("\n")
    for before, line in itertools.pairwise(lines):
        if line == "new file mode 100644" and before.startswith("diff --git a/"):
            yield before.removeprefix("diff --git a/").partition(" ")[0]


def _is_header_of(line: str, current: str) -> bool:
    return line in (f"--- a/{current}", "--- /dev/null", f"+++ b/{current}")


def _check_path(path: str, directory: PurePosixPath) -> None:
    parts = path.split("/")
    is_plain = bool(_SAFE_PATH.match(path)) and not any(part in (".", "..", ".git") for part in parts)
    if not is_plain or not PurePosixPath(path).is_relative_to(directory) or not path.endswith(".json"):
        raise PatchRefused(f"{path[:120]!r} is not a baseline below {directory}/")


def _applied_to_copy(
    patch: Path,
    touched: list[str],
    created: set[str],
    directory: PurePosixPath,
    root: Path,
    *,
    is_applied: bool,
) -> list[str]:
    """Apply the patch to a copy of the touched files, check each result, then copy the results back."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        for name in touched:
            original = root / name
            if original.is_symlink() or any(parent.is_symlink() for parent in _inside(original, root)):
                raise PatchRefused(f"{name} leads through a symbolic link")
            if original.is_file() and name not in created:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (copy / name).write_bytes(original.read_bytes())
        run_git_apply(patch, copy)
        stored = [_checked(copy / name, name, directory) for name in touched]
        for name in touched if is_applied else ():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((copy / name).read_bytes())
    return stored


def _inside(path: Path, root: Path) -> list[Path]:
    return [parent for parent in path.parents if parent.is_relative_to(root) and parent != root]


def run_git_apply(patch: Path, folder: Path) -> None:
    """Apply a patch in a folder with git."""
    completed = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch)],
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=_APPLY_SECONDS,
        check=False,
    )
    if completed.returncode:
        raise PatchRefused(f"git apply: {completed.stderr.strip()[:500]}")


def _checked(path: Path, name: str, directory: PurePosixPath) -> str:
    try:
        document = read_json(path)
        check_baseline(document)
    except (OSError, ValueError) as error:
        raise PatchRefused(f"{name}: {error}") from None
    key = Environment.from_stored(document["environment"]).key
    if baselines.path_for(Path(directory), key, document["test"]).as_posix() != name:
        raise PatchRefused(f"{name} is not where the baseline of {document['test']!r} on {key} belongs")
    return f"{document['test']} on {key}: {', '.join(document['readings'])}"
