"""What the installed torch was built for and what it links: read from its files, without importing it."""

import importlib.util
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from perfsuite.devices.emulated.elf import NotElf, read_needs
from perfsuite.errors import DeviceMissing

KNOWN_MAJORS = (12, 13)
# Whose names we answer for. What torch finds elsewhere (BLAS, C, its own libraries) is none of ours.
_OURS = re.compile(
    r"(__cuda|cuda[A-Z]|cu[A-Z]|cublas|cudnn|cufft|cupti|curand|cusolver|cusparse|nccl[A-Z]|nvrtc|nvshmem|nvJitLink)"
)
_LIBRARY = re.compile(r"lib(cu|nv|nccl)[A-Za-z_]*\.so[.\d]*$")
_ANY_CUDNN = 9 * 10_000 + 99 * 100  # newer than any torch was built with: torch accepts any newer one


@dataclass(frozen=True)
class TorchBuild:
    """One installed torch: its version, its CUDA, and all it takes from NVIDIA's libraries."""

    version: str
    cuda: int  # major * 1000 + minor * 10, as CUDA counts
    cudnn: int  # major * 10000 + minor * 100 + patch
    libraries: tuple[str, ...]  # the file names it links
    symbols: tuple[str, ...]
    versions: dict[str, str]  # library → the version its symbols carry

    @classmethod
    def installed(cls) -> "TorchBuild":
        """Read the torch that this interpreter would import, or say why it cannot be emulated for."""
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            raise DeviceMissing("the emulated GPU runs torch's CUDA build, and torch is not installed")
        return cls.from_folder(Path(spec.origin).parent)

    @classmethod
    def from_folder(cls, folder: Path) -> "TorchBuild":
        """Read a torch by the folder of its package."""
        version, cuda = _versions(folder)
        libraries: set[str] = set()
        symbols: set[str] = set()
        versions: dict[str, str] = {}
        for path in sorted((folder / "lib").glob("*.so*")):
            try:
                needs = read_needs(path)
            except (NotElf, OSError, ValueError):
                continue  # a linker script or an empty file among them is no library of torch's
            libraries |= {name for name in needs.libraries if _LIBRARY.match(name)}
            for symbol, (library, mark) in needs.symbols.items():
                if _OURS.match(symbol):
                    symbols.add(symbol)
                    if library:
                        versions[library] = mark
        if not any(name.startswith("libcudart.so") for name in libraries):
            raise DeviceMissing(
                f"torch {version} does not link libcudart.so as the emulator expects: it was linked another "
                f"way; torch's wheels from its package index for CUDA {_known_majors()} are known to work"
            )
        return cls(version, cuda, _cudnn(), tuple(sorted(libraries)), tuple(sorted(symbols)), versions)


def _versions(folder: Path) -> tuple[str, int]:
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise DeviceMissing(f"torch's version cannot be read: {error}") from None
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?::[^=]+)? = '(\d+)\.(\d+)'", text, re.MULTILINE)
    named = version.group(1) if version else "of unknown version"
    if cuda is None:
        raise DeviceMissing(
            f"the emulated GPU runs torch's CUDA build, and torch {named} is a build without CUDA; install "
            "one, or count on a modelled GPU: --perf-device=model:a10"
        )
    major, minor = int(cuda.group(1)), int(cuda.group(2))
    if major not in KNOWN_MAJORS:
        raise DeviceMissing(
            f"torch {named} was built for CUDA {major}.{minor}; the emulator knows CUDA {_known_majors()}"
        )
    return named, 1000 * major + 10 * minor


def _known_majors() -> str:
    return " and ".join(map(str, KNOWN_MAJORS))


def _cudnn() -> int:
    """Return the cuDNN that torch's wheel requires: torch refuses an older one."""
    try:
        required = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        required = []
    for line in required:
        found = re.match(r"nvidia-cudnn-cu\d+==(\d+)\.(\d+)\.(\d+)", line)
        if found:
            major, minor, patch = (int(part) for part in found.groups())
            return 10_000 * major + 100 * minor + patch
    return _ANY_CUDNN
