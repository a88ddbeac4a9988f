"""Build the emulator for the installed torch on first use, and keep it in the user's cache.

One library has all the code. torch loads NVIDIA's libraries by their file names, so each of those is a
small file under that name which leads to the one. A symbol that torch links and we do not have becomes a
function that refuses; the linker prefers ours, so no list of what we have is needed here.
"""

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perfsuite.devices.emulated.torch_build import TorchBuild
from perfsuite.errors import DeviceMissing

SOURCES = Path(__file__).parent / "native"
CORE = "libperfsuite_emulated.so"
_ALWAYS = ("libcuda.so.1", "libnvidia-ml.so.1")  # opened by name, linked by nobody
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-D_GNU_SOURCE", "-w")
_BUILD_SECONDS = 120
# What each library calls «not supported»; the longest beginning of a name decides.
_REFUSALS = {
    "cu": 801,
    "__cuda": 801,
    "cuFile": 5027,
    "cublas": 15,
    "cudnn": 3000,
    "cufft": 16,
    "cupti": 27,
    "curand": 204,
    "cusolver": 9,
    "cusparse": 10,
    "nccl": 5,
    "nvJitLink": 1,
    "nvrtc": 11,
    "nvshmem": 1,
}
_TEXTS = ("ErrorString", "ErrorName", "GetLastError")  # return words, not a number


def build(torch: TorchBuild) -> Path:
    """Return the folder with the emulator's libraries for this torch, built where it is not there yet."""
    if platform.system() != "Linux":
        raise DeviceMissing(
            f"the emulated GPU needs Linux, this is {platform.system()}; "
            "count on a modelled one: --perf-device=model:a10"
        )
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise DeviceMissing(
            "the emulated GPU is built by a C compiler, and there is none (cc, or what CC names); "
            "install one, or count on a modelled GPU: --perf-device=model:a10"
        )
    try:
        return _built(_cache(), compiler, torch)
    except OSError as error:
        raise DeviceMissing(f"the emulated GPU's libraries could not be kept: {error}") from None


def preloads(folder: Path) -> str:
    """Return LD_PRELOAD's value: the core first, then the files under NVIDIA's names.

    torch's own search path comes before LD_LIBRARY_PATH; what is loaded already comes before both.
    """
    doors = [path for path in folder.glob("lib*.so*") if path.name != CORE and not path.is_symlink()]
    return ":".join(str(path) for path in (folder / CORE, *sorted(doors)))


def _cache() -> Path:
    """Return the user's cache folder for this; OSError where it is not the user's alone."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "perfsuite"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(f"{folder} can be written to by others; remove it, or chmod 700 it")
    return folder


def _key(compiler: str, torch: TorchBuild) -> str:
    """Return a name for everything the libraries depend on."""
    parts = [path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]"))]
    settings = (*_FLAGS, compiler, _version(compiler), platform.machine(), repr(torch), repr(_REFUSALS))
    parts += [word.encode() for word in settings]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _version(compiler: str) -> str:
    try:
        return subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceMissing(f"{compiler} does not answer: {error}") from None


def _built(cache: Path, compiler: str, torch: TorchBuild) -> Path:
    target = cache / f"emulated-{_key(compiler, torch)}"
    if (target / CORE).exists():
        return target
    # Built aside and renamed: processes that start at once each see all of it or none.
    with tempfile.TemporaryDirectory(dir=cache) as name:
        aside, ready = Path(name), Path(name) / "ready"
        ready.mkdir()
        _build_core(aside, ready, compiler, torch)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [
                pool.submit(_build_door, aside, ready, compiler, library, torch.versions.get(library, ""))
                for library in sorted({*torch.libraries, *_ALWAYS})
            ]:
                done.result()
        (ready / "libcuda.so").symlink_to("libcuda.so.1")  # what Triton's helpers link
        try:
            os.rename(ready, target)
        except OSError:
            if not (target / CORE).exists():  # else another process was first, with the same
                raise
    return target


def _build_core(aside: Path, ready: Path, compiler: str, torch: TorchBuild) -> None:
    (aside / "refusals.c").write_text(refusals(torch.symbols), encoding="utf-8")
    (aside / "exports.map").write_text(
        "{ global: cu*; __cuda*; nv*; nccl*; perfsuite_emulated_*; local: *; };\n", encoding="utf-8"
    )
    versions = (f"-DEMULATED_CUDA={torch.cuda}", f"-DEMULATED_CUDNN={torch.cudnn}")
    sources = [*sorted(SOURCES.glob("*.c")), aside / "refusals.c"]
    objects = [aside / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [
            pool.submit(
                _run, [compiler, *_FLAGS, *versions, f"-I{SOURCES}", "-c", str(source), "-o", str(made)]
            )
            for source, made in zip(sources, objects, strict=True)
        ]:
            done.result()
    script = f"-Wl,--version-script={aside / 'exports.map'}"
    linked = (*map(str, objects), "-lpthread", "-ldl", "-o", str(ready / CORE))
    _run([compiler, "-shared", f"-Wl,-soname,{CORE}", script, *linked])


def _build_door(aside: Path, ready: Path, compiler: str, library: str, version: str) -> None:
    """Make the small file under one of NVIDIA's names; without its version the loader would stop."""
    source, script = aside / f"{library}.c", aside / f"{library}.map"
    word = "perfsuite_emulated_door_" + "".join(letter if letter.isalnum() else "_" for letter in library)
    source.write_text(f"int {word};\n", encoding="utf-8")
    script.write_text(f"{version} {{ global: {word}; }};\n" if version else f"{{ global: {word}; }};\n")
    named = (f"-Wl,-soname,{library}", f"-Wl,--version-script={script}")
    leading = ("-Wl,--no-as-needed", str(ready / CORE), "-Wl,-rpath,$ORIGIN")
    _run([compiler, "-shared", "-fPIC", *named, str(source), *leading, "-o", str(ready / library)])


def refusals(symbols: tuple[str, ...]) -> str:
    """Return C with a function for every symbol torch links; the weak ones give way to those we have."""
    lines = [
        "int emu_refuse(const char *name, int code);",
        'static const char words[] = "perfsuite\'s emulated GPU does not have it";',
    ]
    for name in symbols:
        if name.endswith(_TEXTS):
            lines.append(f"__attribute__((weak)) const char *{name}(void) {{ return words; }}")
        else:
            refuse = f'emu_refuse("{name}", {_code(name)})'
            lines.append(f"__attribute__((weak)) int {name}(void) {{ return {refuse}; }}")
    return "\n".join(lines) + "\n"


def _code(name: str) -> int:
    return _REFUSALS[max((start for start in _REFUSALS if name.startswith(start)), key=len)]


def _run(command: list[str]) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceMissing(f"the emulated GPU was not built: {command[0]} failed: {error}") from None
    if ran.returncode:
        lines = ran.stderr.splitlines() or [f"exit status {ran.returncode}"]
        first = next((line for line in lines if "error" in line.lower()), lines[0])
        raise DeviceMissing(f"the emulated GPU was not built: {command[0]} failed: {first.strip()}")
