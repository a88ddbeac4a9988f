"""Find the processor's name on Linux, macOS and Windows."""

import platform
import re
import subprocess
from functools import cache
from pathlib import Path


@cache
def cpu_name() -> str:
    """Return the processor's name without trademark signs and clock speed."""
    raw = _from_proc() or _from_sysctl() or platform.processor() or platform.machine() or "unknown"
    return " ".join(re.sub(r"\((R|TM|tm)\)|@.*$| CPU| Processor", "", raw).split())


def _from_proc() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else None


def _from_sysctl() -> str | None:
    if platform.system() != "Darwin":
        return None
    try:
        asked = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() or None
