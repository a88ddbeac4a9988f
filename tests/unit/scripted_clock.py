"""Stands in for the module `time`: wall and CPU time that pass only as told."""


class Clock:
    """What the code under test asks, and what a test sets."""

    def __init__(self):
        self.wall = self.cpu = self.queued = 0.0

    def perf_counter(self):
        """Answer as time.perf_counter."""
        return self.wall

    def thread_time(self):
        """Answer as time.thread_time."""
        return self.cpu
