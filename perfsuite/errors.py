"""The errors a user can cause; each message says what is wrong and what to do."""


class PerfsuiteError(Exception):
    """Base class of all errors in input or set-up; the plugin shows them without a traceback."""


class InvalidMarker(PerfsuiteError):
    """A perf marker has invalid arguments."""


class InvalidBaseline(PerfsuiteError):
    """A stored baseline is malformed or does not belong to this test and machine."""


class BaselineNotWritten(PerfsuiteError):
    """A baseline could not be written; the file stored before is unchanged."""


class DeviceMissing(PerfsuiteError):
    """A device requested by name is not available."""


class UnusableStep(PerfsuiteError):
    """The measured callable or loader cannot be measured as given."""


class RunInvalid(PerfsuiteError):
    """No measurement of this run counts: the device is lost, or its driver does not match."""


class SessionFailed(PerfsuiteError):
    """A fresh process that was started to measure returned no result."""


class RefUnusable(PerfsuiteError):
    """A git ref that cannot be compared with."""


class HistoryUnusable(PerfsuiteError):
    """A history file that cannot be read, or that holds too little to analyse."""


class ChecklistMissed(PerfsuiteError):
    """A training does not meet all items of its checklist."""


class RanksApart(PerfsuiteError):
    """Ranks that should measure together do not: one failed, exited, or runs something else."""


class DeviceBusy(PerfsuiteError):
    """A device that another run is using did not become free in time."""


class LockUnusable(PerfsuiteError):
    """A lock file or its folder cannot be used; the run continues without the lock."""
