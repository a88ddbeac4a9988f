"""The environment of a reading: what must match for a comparison, and what is only shown."""

import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path

from perfsuite.host import cpu_name
from perfsuite.records import CardMatch, DeviceFacts, Match

_GIT_SECONDS = 10
_CARD_LENGTH = len("gpu-12345678")  # of a UUID in a folder's name; the file has all of it


@dataclass(frozen=True)
class Environment:
    """The machine, device and software of a reading; None where unknown."""

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
    host: str | None = None  # the processor, where it must match; None in baselines from before it did

    @classmethod
    def from_device(
        cls, facts: DeviceFacts, root: Path | None = None, excluded: Path | None = None
    ) -> "Environment":
        """Describe this machine, this device and the commit checked out at `root`."""
        commit, dirty = git_state(root, excluded) if root else (None, None)
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
            host=facts.host,
        )

    @classmethod
    def from_stored(cls, stored: Mapping[str, object]) -> "Environment":
        """Read a stored environment, ignoring fields this version does not know."""
        known = {item.name for item in fields(cls)}
        empty: dict[str, object] = dict.fromkeys(known, None)
        return cls(**{**empty, **{k: v for k, v in stored.items() if k in known}})  # type: ignore[arg-type]

    @property
    def key(self) -> str:
        """Return the name of the baseline folder: what must match, and the single card where it is known."""
        return f"{self.kind_key}_{slug(self.card)[:_CARD_LENGTH]}" if self.card else self.kind_key

    @property
    def kind_key(self) -> str:
        """Return what must match before a baseline gates; cards of one kind share it."""
        return "_".join(slug(part) for part in self._matching().values() if part)

    @property
    def card(self) -> str:
        """Return the identity of the card, "" where baselines are not kept card by card."""
        return (self.device_uuid or "") if self.host else ""

    def _matching(self) -> dict[str, str]:
        return {
            "device kind": self.device_kind,
            "device": self.device_name,
            "host": self.host or "",
            "ranks": f"{self.ranks}-ranks" if self.ranks else "",
            "threads": f"{self.threads}-threads" if self.threads else "",
            "CUDA": f"cuda{_minor(self.cuda)}" if self.cuda else "",
            "torch": f"torch{_minor(self.torch)}" if self.torch else "",
        }

    def match(self, stored: "Environment") -> tuple[Match, str]:
        """Return how well a stored environment matches this one, and what differs."""
        here, there = self._matching(), stored._matching()
        if stored.host is None:  # from before hosts were compared: it gates as it did
            here["host"] = ""
        differing = {name for name in here if slug(here[name]) != slug(there[name])}
        if not differing:
            return Match.EXACT, ""
        differences = ", ".join(
            f"{n} {there[n] or 'none'} instead of {here[n] or 'none'}" for n in sorted(differing)
        )
        is_near = not differing & {"device kind", "device"}
        return (Match.NEAR if is_near else Match.NONE), differences

    def match_card(self, stored: "Environment") -> CardMatch:
        """Return whether a stored environment has the same card."""
        if not self.card or not stored.card:
            return CardMatch.UNKNOWN
        return CardMatch.SAME if self.card == stored.card else CardMatch.OTHER

    def to_stored(self) -> dict[str, object]:
        """Return a plain dictionary for files."""
        return asdict(self)


def slug(text: str) -> str:
    """Return the text as a file name that is valid on every system."""
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


def git_state(root: Path, excluded: Path | None = None) -> tuple[str | None, bool | None]:
    """Return the commit and whether tracked files differ from it, ignoring those below `excluded`.

    The baselines are excluded: storing them must not make the work tree count as dirty.
    """
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    is_inside = excluded is not None and excluded.is_relative_to(root)
    paths = [".", f":(exclude){excluded.relative_to(root)}"] if is_inside and excluded is not None else ["."]
    status = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *paths)
    return commit, None if status is None else bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        completed = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip()
