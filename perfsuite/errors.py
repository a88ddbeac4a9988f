"""The errors a user can cause, each saying what is wrong and what to do."""


class PerfsuiteError(Exception):
    """Any error of input or set-up; the plugin shows its text without a traceback."""


class InvalidMarker(PerfsuiteError):
    """A perf marker says something that cannot be meant."""


class InvalidBaseline(PerfsuiteError):
    """A stored baseline cannot be trusted as it is."""


class BaselineNotWritten(PerfsuiteError):
    """A baseline could not be written; what was stored before is untouched."""


class DeviceMissing(PerfsuiteError):
    """A device asked for by name is not there."""


class UnusableStep(PerfsuiteError):
    """The measured callable or loader cannot be measured as given."""


class RunInvalid(PerfsuiteError):
    """Whatever is measured here does not count: the device is lost, or its driver does not fit."""


class SessionFailed(PerfsuiteError):
    """A fresh process that should have measured gave no answer."""


class RefUnusable(PerfsuiteError):
    """A git ref that cannot be compared with."""


class HistoryUnusable(PerfsuiteError):
    """A history file that cannot be read, or from which nothing follows."""


class ChecklistMissed(PerfsuiteError):
    """A training misses items of its checklist."""


class RanksApart(PerfsuiteError):
    """Processes that should measure together do not: one failed, is gone, or does something else."""


class DeviceBusy(PerfsuiteError):
    """A device that another run measures on was not free in time."""


class LockUnusable(PerfsuiteError):
    """A lock file or its folder cannot be used: measuring goes on without it."""
