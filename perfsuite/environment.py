"""What must match before two readings are compared: device, torch, threads; and what only is told."""

import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path

from perfsuite.cpu_name import cpu_name
from perfsuite.devices import DeviceFacts
from perfsuite.records import Match

_GIT_SECONDS = 10


@dataclass(frozen=True)
class Environment:
    """Where and on what a reading was taken; None where it could not be told."""

    device_kind: str
    device_name: str
    device_uuid: str | None
    device_memory_bytes: int | None
    driver: str | None
    cuda: str | None
    torch: str | None
    python: str
    system: str
    cpu: str
    host_memory_bytes: int | None
    threads: int | None
    commit: str | None = None
    dirty: bool | None = None
    ranks: int | None = None

    @classmethod
    def from_device(
        cls, facts: DeviceFacts, root: Path | None = None, apart: Path | None = None
    ) -> "Environment":
        """Describe this machine, this device and the commit checked out at root."""
        commit, dirty = git_state(root, apart) if root else (None, None)
        return cls(
            device_kind=facts.kind,
            device_name=facts.name,
            device_uuid=facts.uuid,
            device_memory_bytes=facts.memory_bytes,
            driver=facts.driver,
            cuda=facts.cuda,
            torch=_version("torch"),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.machine()}",
            cpu=cpu_name(),
            host_memory_bytes=_host_memory_bytes(),
            threads=facts.threads,
            commit=commit,
            dirty=dirty,
            ranks=facts.ranks,
        )

    @classmethod
    def from_stored(cls, stored: Mapping[str, object]) -> "Environment":
        """Read a stored environment, ignoring what this version does not know."""
        known = {item.name for item in fields(cls)}
        empty: dict[str, object] = dict.fromkeys(known, None)
        return cls(**{**empty, **{k: v for k, v in stored.items() if k in known}})  # type: ignore[arg-type]

    @property
    def key(self) -> str:
        """Return the folder's name: all that must match, and nothing that need not."""
        return "_".join(slug(part) for part in self._matching().values() if part)

    def _matching(self) -> dict[str, str]:
        return {
            "device kind": self.device_kind,
            "device": self.device_name,
            "ranks": f"{self.ranks}-ranks" if self.ranks else "",
            "threads": f"{self.threads}-threads" if self.threads else "",
            "CUDA": f"cuda{_minor(self.cuda)}" if self.cuda else "",
            "torch": f"torch{_minor(self.torch)}" if self.torch else "",
        }

    def match(self, stored: "Environment") -> tuple[Match, str]:
        """Tell whether a stored reading may gate one taken here, and what keeps it from it."""
        here, there = self._matching(), stored._matching()
        differing = {name for name in here if slug(here[name]) != slug(there[name])}
        if not differing:
            return Match.EXACT, ""
        told = ", ".join(
            f"{n} {there[n] or 'none'} instead of {here[n] or 'none'}" for n in sorted(differing)
        )
        is_near = not differing & {"device kind", "device"}
        return (Match.NEAR if is_near else Match.NONE), told

    def to_stored(self) -> dict[str, object]:
        """Return the plain form for files."""
        return asdict(self)


def slug(text: str) -> str:
    """Return text fit for a file name on every system."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def _minor(version: str | None) -> str:
    return ".".join((version or "").split("+")[0].split(".")[:2])


def _host_memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state(root: Path, apart: Path | None = None) -> tuple[str | None, bool | None]:
    """Return commit and whether tracked files differ from it, leaving the baselines themselves aside."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    inside = apart is not None and apart.is_relative_to(root)
    paths = [".", f":(exclude){apart.relative_to(root)}"] if inside and apart is not None else ["."]
    status = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *paths)
    return commit, None if status is None else bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
