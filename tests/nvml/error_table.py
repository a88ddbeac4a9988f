"""Write docs/nvml-errors.md: let every NVML function fail with every code and look at what becomes of it.

python -m tests.nvml.error_table > docs/nvml-errors.md
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from perfsuite.devices.cuda.choice import list_uuids
from perfsuite.devices.cuda.nvml import MEANINGS, load_binding, open_nvml
from perfsuite.errors import RunInvalid
from tests.nvml import standin
from tests.nvml.watch import watch

LIVELY = [
    "at 0 utilization 80",
    "at 0 processes 4711:1000",
    "at 0 persistence 0",
    "at 0 gpm 1",
    "at 0 gpm2 40",
    "at 2 reasons 0x4",
    "at 3.5 reasons 0",
]
SECONDS = 6.0
VERSIONS = {"driver": "nvmlSystemGetDriverVersion", "NVML's version": "nvmlSystemGetNVMLVersion"}
# Function of the binding → the library's name for it.
FUNCTIONS = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion": "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion": "nvmlSystemGetNVMLVersion",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID": "nvmlDeviceGetUUID",
    "nvmlDeviceGetName": "nvmlDeviceGetName",
    "nvmlDeviceGetHandleByUUID": "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetSamples": "nvmlDeviceGetSamples",
    "nvmlDeviceGetUtilizationRates": "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo (version 2)": "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo": "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses_v3": "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2": "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetFieldValues": "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetClockInfo": "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo": "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetTemperature": "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage": "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit": "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTotalEnergyConsumption": "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPersistenceMode": "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetMigMode": "nvmlDeviceGetMigMode",
    "nvmlGpmQueryDeviceSupport": "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc": "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet": "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet": "nvmlGpmMetricsGet",
    "nvmlGpmSampleFree": "nvmlGpmSampleFree",
}
INTRODUCTION = """# What becomes of every NVML error

Made by letting every function that perfsuite calls fail with every code, through the real binding on the
tests' stand-in library. A test compares this page with what the code does; change it with
`python -m tests.nvml.error_table > docs/nvml-errors.md`.

An absent figure is shown as «–», and a limit on it fails with the reason. An invalid run is neither a
pass nor a regression (`--perf-on-invalid`).
"""
# What is asked only where another question fails, with that failure.
BEHIND = {
    "nvmlDeviceGetUtilizationRates": ["fail nvmlDeviceGetSamples 3"],
    "nvmlDeviceGetMemoryInfo": ["fail nvmlDeviceGetMemoryInfo_v2 25"],
    "nvmlDeviceGetComputeRunningProcesses_v2": ["fail nvmlDeviceGetComputeRunningProcesses_v3 13"],
    "nvmlDeviceGetCurrentClocksEventReasons": ["fail nvmlDeviceGetFieldValues 3"],
    "nvmlDeviceGetCurrentClocksThrottleReasons": [
        "fail nvmlDeviceGetFieldValues 3",
        "fail nvmlDeviceGetCurrentClocksEventReasons 13",
    ],
}


def observe(text, folder):
    """Play a script, return figure → how it was had ("" where it was not); None where the run is invalid."""
    path = folder / "script.txt"
    path.write_text(text)
    ctypes.CDLL("libnvidia-ml.so.1").standin_load(str(path).encode())
    try:
        binding, _ = load_binding()
        listed = () if binding is None else list_uuids(binding)
        nvml = open_nvml((standin.UUID,))
        words = {name: nvml.ask_system(function).value for name, function in VERSIONS.items()}
        words["name"] = nvml.ask("nvmlDeviceGetName").value
    except RunInvalid:
        return None
    seen = watch((standin.UUID,), SECONDS)
    if seen["invalid"]:
        return None
    reported, conditions = seen["reported"], seen["conditions"]
    capped = conditions.get("power_cap_share")
    return {
        "list of cards": "there" if listed else "",
        **{name: "there" if value else "" for name, value in words.items()},
        "card": "" if seen["absent"] else "there",
        "utilization": "" if seen["mean"] is None else "sampled" if seen["samples"] > 20 else "polled",
        "memory": "there" if "device_used_bytes" in reported else "",
        "reserved memory": "there" if "device_reserved_bytes" in reported else "",
        "company": "" if seen["absent"] or any("cannot be seen" in n for n in seen["notes"]) else "there",
        "throttling": "" if capped is None else "counted" if abs(capped - 0.25) < 1e-6 else "looked at",
        "clocks under load": "there" if "sm_clock_mhz" in conditions else "",
        "highest clock": "there" if "max_sm_clock_mhz" in conditions else "",
        "temperature": "there" if "temperature_max" in reported else "",
        "power": "there" if "power_max_watts" in reported else "",
        "power limit": "there" if "power_limit_watts" in conditions else "",
        "energy": "there" if "energy_joules" in reported else "",
        "persistence": "there" if any("persistence" in note for note in seen["notes"]) else "",
        "MIG": "there" if "mig" in conditions else "",
        "SM counters": "there" if "sm_active" in reported else "",
    }


def difference(healthy, now):
    """Return what a failure changed, in words."""
    if now is None:
        return "run invalid"
    if not now["card"]:
        return "everything absent"
    lost = [name for name, how in now.items() if healthy[name] and not how]
    changed = [f"{name} {how}" for name, how in now.items() if how and how != healthy[name]]
    return ", ".join([*([f"{', '.join(lost)} absent"] if lost else []), *changed]) or "nothing is lost"


def table(folder):
    """Return function → code → what became of it."""
    rows = {}
    for name, symbol in FUNCTIONS.items():
        lines = [*LIVELY, *BEHIND.get(name, ())]
        healthy = observe(standin.script(*lines), folder)
        rows[name] = {
            code: difference(healthy, observe(standin.script(*lines, f"fail {symbol} {code}"), folder))
            for code in MEANINGS
        }
    return rows


def render(rows):
    """Return the page; codes that every function answers alike share a column."""
    columns = {}
    for code in MEANINGS:
        columns.setdefault(tuple(row[code] for row in rows.values()), []).append(code)
    heads = [f"code {', '.join(map(str, codes))}" for codes in columns.values()]
    legend = [f"| {code} | {meaning.name} | {meaning.words} |" for code, meaning in MEANINGS.items()]
    body = [[f"`{name}`", *(row[codes[0]] for codes in columns.values())] for name, row in rows.items()]
    behind = ", ".join(f"`{name}`" for name in BEHIND)
    lines = [
        INTRODUCTION,
        "| code | name | means |",
        "|---|---|---|",
        *legend,
        "",
        f"| function | {' | '.join(heads)} |",
        f"|---{'|---' * len(heads)}|",
        *(f"| {' | '.join(cells)} |" for cells in body),
        "",
        f"Asked only where another question has failed, and failing here after it: {behind}.",
    ]
    return "\n".join(lines) + "\n"


def page(library, folder):
    """Return the page as the code makes it now, from a child that runs on the stand-in."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.nvml.error_table", "--child", str(folder)],
        env=standin.environment(library, folder / "none.txt"),
        cwd=standin.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ran.returncode, ran.stderr
    return render({name: {int(k): v for k, v in row.items()} for name, row in json.loads(ran.stdout).items()})


def main():
    if "--child" in sys.argv:
        print(json.dumps(table(Path(sys.argv[-1]))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.write(1, page(standin.build(folder), folder).encode())


if __name__ == "__main__":
    main()
