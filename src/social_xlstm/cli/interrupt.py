"""Ctrl-C and SIGTERM end a training after its current update; a second Ctrl-C ends it at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_STDERR = 2  # the file descriptor


@dataclass
class Interrupt:
    """The signal that came, if one did."""

    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """Give the code a shell expects of a process ended by this signal."""
        return 128 + (self.signal_number or signal.SIGINT)


@contextmanager
def stop_on_signals(request_stop: Callable[[str], None]) -> Iterator[Interrupt]:
    """Turn the first signal into a polite request for the time of the block."""
    interrupt, owner = Interrupt(), os.getpid()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # only the main thread may handle signals
        return

    def handle(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:
            # A loader's worker inherits this handler. Ctrl-C reaches it too, and must not end it before the
            # training has taken its last batch; a request to terminate is meant for it.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if interrupt.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.signal_number = number
        request_stop(signal.Signals(number).name)
        # Written as bytes to the file itself: a signal may come in the middle of another print.
        os.write(_STDERR, b"\nstopping after this update; Ctrl-C again stops at once, unsaved\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
