"""The child process: sample a card with perfsuite's sampler on script time, print the figures as JSON."""

import ctypes
import json
import sys
import threading
import time
from types import SimpleNamespace

from perfsuite.devices.cuda.nvml import open_nvml
from perfsuite.devices.cuda.sampler import Sampler

OWN = 4711  # this process's id in the script


class ScriptClock:
    """A clock that advances when the sampler waits, and stops at the script's end."""

    def __init__(self, end, dies=False):
        self.dies = dies
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.library.standin_now.restype = ctypes.c_double
        self.library.standin_advance.argtypes = [ctypes.c_double]
        self.library.standin_load.argtypes = [ctypes.c_char_p]
        self.end = end
        self.reached = threading.Event()

    def now(self):
        return self.library.standin_now()

    def wait(self, over, seconds):
        if self.now() >= self.end:
            if self.dies:
                raise RuntimeError("the sampler's thread dies here")
            self.reached.set()
            return over.wait(30)
        self.library.standin_advance(min(seconds, self.end - self.now()))
        return over.is_set()


def wait_for_end(sampler, clock):
    """Wait until the sampler has sampled the whole script, has ended early, or is stuck in a call."""
    while sampler._thread.is_alive() and not clock.library.standin_is_blocking():
        if clock.reached.wait(0.001):
            return


def watch(
    uuids, seconds, patience=20.0, own=(OWN,), ours=1, own_bytes=0.0, dies=False, before=0.0, hides=False
):
    """Sample from start to stop and return the figures."""
    nvml = open_nvml(tuple(uuids))
    clock = ScriptClock(before + seconds, dies)
    clock.library.standin_advance(before)
    sampler = Sampler(
        nvml,
        ours=SimpleNamespace(includes=own.__contains__, size=ours) if own else None,
        own_bytes=own_bytes,
        hides_others=hides,
        clock=clock,
        patience_seconds=patience,
    )
    sampler.start()
    wait_for_end(sampler, clock)
    began = time.monotonic()
    sampled = sampler.stop()
    series, summary = sampled.utilization, sampled.summary
    return {
        "absent": nvml.absent,
        "mean": series.mean,
        "swing": series.swing,
        "period": series.period_s,
        "idle": series.idle_stretch_s,
        "samples": series.samples,
        "why": series.why,
        "reported": dict(summary.reported),
        "conditions": dict(summary.conditions),
        "notes": list(summary.notes),
        "invalid": list(summary.invalid),
        "memory": list(summary.memory),
        "stopping": time.monotonic() - began,
    }


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    uuids = settings.pop("uuids", ["GPU-12345678-1234-1234-1234-123456789abc"])
    print(json.dumps(watch(uuids, settings.pop("seconds", 20.0), **settings)), flush=True)
