"""Fetch NVIDIA's headers, which the emulated GPU's prototypes are held against: 2 GB of wheels for 16 MB.

    python -m scripts.nvidia_headers .nvidia-headers

They come from NVIDIA's own wheels on the package index: each is downloaded into a temporary folder, its
headers are taken out, and it is deleted. Each CUDA has a folder; one that is complete is left as it is.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# What the two builds of torch were built with that the emulator is tried on (constraints-emulated*.txt).
PACKAGES = {
    "13": (
        "nvidia-cublas==13.1.0.3",
        "nvidia-cuda-crt==13.0.88",
        "nvidia-cuda-cupti==13.0.85",
        "nvidia-cuda-profiler-api==13.0.85",
        "nvidia-cuda-runtime==13.0.96",
        "nvidia-cudnn-cu13==9.20.0.48",
        "nvidia-nvml-dev==13.0.87",
    ),
    "12": (
        "nvidia-cublas-cu12==12.8.4.1",
        "nvidia-cuda-cupti-cu12==12.8.90",
        "nvidia-cuda-nvcc-cu12==12.8.93",  # has what is nvidia-cuda-crt in 13
        "nvidia-cuda-profiler-api-cu12==12.8.90",
        "nvidia-cuda-runtime-cu12==12.8.90",
        "nvidia-cudnn-cu12==9.10.2.21",
        "nvidia-nvml-dev-cu12==12.8.90",
    ),
}
_COMPLETE = ".complete"  # names what is in a folder, written last


def fetch(packages: tuple[str, ...], folder: Path) -> None:
    """Put the packages' headers into a folder."""
    complete = folder / _COMPLETE
    if complete.is_file() and complete.read_text(encoding="utf-8").split() == [*packages]:
        return
    for package in packages:
        with tempfile.TemporaryDirectory() as place:
            wanted = (
                "--quiet",
                "--no-deps",
                "--no-cache-dir",
                "--only-binary=:all:",
                "--dest",
                place,
                package,
            )
            subprocess.run([sys.executable, "-m", "pip", "download", *wanted], check=True)
            (wheel,) = Path(place).glob("*.whl")
            print(f"{package}: {extract(wheel, folder)} headers", flush=True)
    complete.write_text("\n".join(packages), encoding="utf-8")


def extract(wheel: Path, folder: Path) -> int:
    """Take a wheel's headers out, below its folder include, and return how many there were."""
    found = 0
    with zipfile.ZipFile(wheel) as content:
        for name in content.namelist():
            _, is_header, inside = name.partition("/include/")
            if not is_header or not inside.endswith((".h", ".hpp")) or ".." in Path(inside).parts:
                continue
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read(name))
            found += 1
    if not found:
        raise SystemExit(f"{wheel.name} has no headers in a folder named include: NVIDIA moved them")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("where to? python -m scripts.nvidia_headers FOLDER")
    for cuda, packages in PACKAGES.items():
        fetch(packages, Path(sys.argv[1]) / cuda)
