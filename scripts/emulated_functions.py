"""List what the emulated GPU has of NVIDIA's APIs, as docs/emulated-functions.md.

    python -m scripts.emulated_functions > docs/emulated-functions.md

Read from the preprocessed sources, so that functions made by macros are among them.
"""

import re
import subprocess
import sys
from collections import defaultdict

from perfsuite.devices.emulated.library import SOURCES

_LIBRARIES = {
    "runtime": r"(__cuda|cuda[A-Z])",
    "driver": r"cu[A-Z]",
    "cuBLAS": r"cublas(?!Lt)",
    "cuBLASLt": r"cublasLt",
    "cuDNN": r"cudnn",
    "CUPTI": r"cupti",
    "NVML": r"nvml",
}
_HEAD_OF_ONE = re.compile(r"\b((?:__cuda|cu|nvml)\w+)\([^;{}()]*(?:\([^;{}()]*\)[^;{}()]*)*\)\s*\{")
_NOTHING = re.compile(r"(\(void\)\w+[,;]?\s*|return (?:\w*SUCCESS|cudaSuccess);\s*)*")
_HEAD = """# What the emulated GPU has

Written by `python -m scripts.emulated_functions`, kept by a test. **Does**: the call has its effect on the
emulated card. *Accepts*: it is taken and changes nothing, because nothing here depends on it. Every other
function that the installed torch links refuses with «not supported», is counted and named when the run ends.
"""


def functions(version: int) -> dict[str, dict[str, bool]]:
    """Return library → function → whether it does something."""
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    for source in sorted(SOURCES.glob("*.c")):
        command = [
            "cc",
            "-E",
            "-P",
            "-w",
            "-D_GNU_SOURCE",
            f"-DEMULATED_CUDA={version}",
            f"-I{SOURCES}",
            str(source),
        ]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for head in _HEAD_OF_ONE.finditer(text):
            name, body = head.group(1), _body(text, head.end())
            library = next((one for one, start in _LIBRARIES.items() if re.match(start, name)), None)
            if library is not None:
                found[library][name] = not _NOTHING.fullmatch(body.strip())
    return found


def _body(text: str, start: int) -> str:
    """Return what stands between a function's braces."""
    depth, at = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[start : at - 1]


def render() -> str:
    """Return the document."""
    both = [functions(version) for version in (12080, 13000)]
    lines = [_HEAD]
    for library in _LIBRARIES:
        merged = {**both[0].get(library, {}), **both[1].get(library, {})}
        lines.append(f"## {library}: {len(merged)} functions\n")
        for title, does in (("**Does**", True), ("*Accepts*", False)):
            names = sorted((name for name, is_done in merged.items() if is_done is does), key=str.lower)
            if names:
                lines.append(f"{title}: {', '.join(f'`{name}`' for name in names)}\n")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(render())
