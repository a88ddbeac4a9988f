"""Times as the file layout spells them, and step lengths such as "5min"; anything else is refused."""

import re
from collections.abc import Iterable

import numpy as np

from social_xlstm.errors import InputError

# Numpy alone would also take "today", "NaT", years and time zones, and warn about the last.
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_FREQUENCY = re.compile(r"([0-9]{1,7}) ?([A-Za-z]*)")
_UNIT_SECONDS = {"": 1, "s": 1, "sec": 1, "t": 60, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_timestamps(texts: Iterable[str], where: str) -> np.ndarray:
    """Turn "YYYY-MM-DD HH:MM:SS" texts into datetime64[s], naming the first that is not one."""
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or _TIMESTAMP.fullmatch(text) is None:
            raise InputError(
                f"{where}: timestamp {index} is {text!r}, not a time; write it as YYYY-MM-DD HH:MM:SS"
            )
    try:
        return np.array(texts, dtype="datetime64[s]")
    except ValueError as error:
        raise InputError(
            f"{where}: a timestamp is not a date of the calendar ({error}); correct it"
        ) from error


def format_timestamps(times: np.ndarray) -> list[str]:
    """Spell datetime64[s] the way the file layout wants them."""
    return [text.replace("T", " ") for text in np.datetime_as_string(times, unit="s").tolist()]


def parse_frequency(text: str, where: str) -> int:
    """Turn "5min", "300s", "1h" or plain seconds into seconds."""
    match = _FREQUENCY.fullmatch(text.strip())
    seconds = int(match[1]) * _UNIT_SECONDS.get(match[2].lower(), 0) if match else 0
    if seconds <= 0:
        raise InputError(
            f"{where}: frequency {text!r} is not a step length; write for example 5min, 300s or 1h"
        )
    return seconds


def format_frequency(seconds: int) -> str:
    """Spell a step length in the largest unit that divides it."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def common_step_seconds(times: np.ndarray) -> int | None:
    """Give the commonest distance between neighbouring times, or None where there is only one time."""
    if len(times) < 2:
        return None
    steps, counts = np.unique(np.diff(times).astype(np.int64), return_counts=True)
    return int(steps[np.argmax(counts)])


def check_increasing(times: np.ndarray, where: str) -> None:
    """Refuse times that repeat, go back or are missing."""
    if np.isnat(times).any():
        raise InputError(
            f"{where}: timestamp {int(np.argmax(np.isnat(times)))} is missing (NaT); give every step a time"
        )
    steps = np.diff(times).astype(np.int64)
    if (steps > 0).all():
        return
    index = int(np.argmax(steps <= 0))
    fault = "repeats" if steps[index] == 0 else "is earlier than"
    raise InputError(
        f"{where}: time must increase strictly, but step {index + 1} ({times[index + 1]}) {fault} "
        f"step {index} ({times[index]}); sort the steps and drop duplicates"
    )
