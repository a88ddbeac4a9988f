"""A traffic set and the rules it obeys, whatever file it came from; times; what counts as missing."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np

from social_xlstm.errors import InputError

MAX_SPEED = 200.0
_NEGATIVE_CODES = (-99.0, -1.0)
# 255 is a detector's error code, but also a plausible number of vehicles in five minutes.
_ALL_CODES = (*_NEGATIVE_CODES, 255.0)
_BLOCK_STEPS = 4096  # keeps temporaries small beside a set of hundreds of megabytes
# Numpy alone would also take "today", "NaT", years and time zones, and warn about the last.
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_FREQUENCY = re.compile(r"([0-9]{1,7}) ?([A-Za-z]*)")
_UNIT_SECONDS = {"": 1, "s": 1, "sec": 1, "t": 60, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, eq=False)
class TrafficSet:
    """Features of N detectors over T steps; NaN where nothing was measured."""

    features: np.ndarray  # float32 [T, N, F]
    timestamps: np.ndarray  # datetime64[s] [T]
    vdids: tuple[str, ...]
    feature_names: tuple[str, ...]
    positions: np.ndarray | None = None  # float64 [N, 2]: latitude, longitude
    directions: tuple[str | None, ...] | None = None
    lanes: tuple[int | None, ...] | None = None
    lengths_km: tuple[float | None, ...] | None = None
    units: dict[str, str] = field(default_factory=dict)
    source: str = ""

    @property
    def frequency_seconds(self) -> int | None:
        """Return the commonest step length, or None for a set of one step."""
        return common_step_seconds(self.timestamps)

    def select(
        self, *, vdids: tuple[str, ...] | None = None, feature_names: tuple[str, ...] | None = None
    ) -> "TrafficSet":
        """Keep the named detectors and features, in the order named."""
        chosen = self
        if feature_names is not None:
            rows = _indices(feature_names, self.feature_names, "feature", "data.selected_features")
            chosen = replace(chosen, features=chosen.features[:, :, rows], feature_names=tuple(feature_names))
        if vdids is not None:
            rows = _indices(vdids, self.vdids, "detector", "data.selected_vdids")
            chosen = replace(
                chosen,
                features=chosen.features[:, rows],
                vdids=tuple(vdids),
                positions=None if chosen.positions is None else chosen.positions[rows],
                directions=_rows_of(chosen.directions, rows),
                lanes=_rows_of(chosen.lanes, rows),
                lengths_km=_rows_of(chosen.lengths_km, rows),
            )
        return chosen


def _rows_of(values: tuple | None, rows: list[int]) -> tuple | None:
    """Pick entries of an optional per-detector attribute."""
    return None if values is None else tuple(values[row] for row in rows)


def _indices(wanted: tuple[str, ...], known: tuple[str, ...], noun: str, key: str) -> list[int]:
    """Find the wanted names among the known ones, refusing unknown names, repetitions and an empty list."""
    if not wanted:
        raise InputError(f"{key} is empty; name at least one {noun} or leave the key out")
    index_of = {name: index for index, name in enumerate(known)}
    for name in wanted:
        if name not in index_of:
            near = get_close_matches(name, known, n=3) or list(known[:3])
            raise InputError(
                f"{key} names the unknown {noun} {name!r}; known are for example {', '.join(near)}"
            )
    if len(set(wanted)) != len(wanted):
        raise InputError(f"{key} names a {noun} twice; name each once")
    return [index_of[name] for name in wanted]


def check_names(names: tuple[str, ...], noun: str, where: str) -> None:
    """Refuse names that repeat, are empty, or cannot name a group of an HDF5 file."""
    seen: set[str] = set()
    for name in names:
        if not name or name == "." or "/" in name or not name.isprintable():
            raise InputError(
                f"{where}: {noun} name {name!r} cannot be used; "
                "avoid empty names, '.', '/' and control characters"
            )
        if name in seen:
            raise InputError(f"{where}: {noun} {name!r} appears twice; every {noun} needs a name of its own")
        seen.add(name)


def check_shape(shape: tuple[int, ...], steps: int, detectors: int, features: int, where: str) -> None:
    """Refuse features whose shape disagrees with the lists beside them, or which hold nothing."""
    expected = (steps, detectors, features)
    if shape != expected:
        raise InputError(
            f"{where}: features have shape {list(shape)}, but {steps} timestamps, {detectors} vdids and "
            f"{features} feature_names require {list(expected)}; make the lengths agree"
        )
    if 0 in expected:
        raise InputError(
            f"{where}: the set is empty (shape {list(shape)}); it needs a step, a detector and a feature"
        )


def check_positions(
    positions: np.ndarray, vdids: tuple[str, ...], where: str, *, partial: bool = False
) -> None:
    """Refuse positions that are missing (unless partial), not finite or not on the globe."""
    if positions.shape != (len(vdids), 2):
        raise InputError(
            f"{where}: positions have shape {list(positions.shape)}, expected [{len(vdids)}, 2]; "
            "give latitude and longitude of every detector"
        )
    absent = np.isnan(positions).all(axis=1)
    if absent.any() and not partial:
        names = [vdid for vdid, gone in zip(vdids, absent, strict=True) if gone]
        raise InputError(
            f"{where}: {len(names)} of {len(vdids)} detectors have no position (first: {names[0]}); "
            "give them position_lat and position_lon, leave them out with data.selected_vdids, "
            "or switch social_pooling off"
        )
    outside = ~(np.abs(positions) <= (90.0, 180.0)).all(axis=1) & ~absent
    if outside.any():
        row = int(np.argmax(outside))
        raise InputError(
            f"{where}: detector {vdids[row]} has the impossible position {positions[row].tolist()}; "
            "latitude lies within ±90 and longitude within ±180 degrees"
        )


def checked(
    traffic: TrafficSet, where: str, *, partial_positions: bool = False, in_place: bool = False
) -> TrafficSet:
    """Return the set with missing codes as NaN, or refuse it with the first rule it breaks."""
    check_names(traffic.vdids, "detector", where)
    check_names(traffic.feature_names, "feature", where)
    if traffic.features.dtype != np.float32:
        raise InputError(f"{where}: features are {traffic.features.dtype}, not float32; convert them")
    check_shape(
        traffic.features.shape, len(traffic.timestamps), len(traffic.vdids), len(traffic.feature_names), where
    )
    check_increasing(traffic.timestamps, where)
    if traffic.positions is not None:
        check_positions(traffic.positions, traffic.vdids, where, partial=partial_positions)
    for noun, values in (
        ("directions", traffic.directions),
        ("lanes", traffic.lanes),
        ("lengths_km", traffic.lengths_km),
    ):
        if values is not None and len(values) != len(traffic.vdids):
            raise InputError(
                f"{where}: {len(values)} {noun} for {len(traffic.vdids)} detectors; make the lengths agree"
            )
    features = traffic.features if in_place else traffic.features.copy()
    mark_missing(features, traffic.feature_names, where)
    return replace(traffic, features=features)


def is_speed(name: str) -> bool:
    """Return whether a feature's name says it is a speed."""
    return "speed" in name.lower()


def missing_codes(name: str) -> tuple[float, ...]:
    """List the numbers that mean "no value" in a feature, judged by its name."""
    lowered = name.lower()
    if is_speed(lowered) or "occupancy" in lowered:
        return _ALL_CODES
    if any(word in lowered for word in ("flow", "volume", "count")):
        return _NEGATIVE_CODES
    return ()  # a made-up feature such as the sine of the hour may well be -1


def mark_missing(features: np.ndarray, feature_names: tuple[str, ...], where: str) -> None:
    """Write NaN over missing codes, in place, and refuse infinities and speeds outside 0–200."""
    for index, name in enumerate(feature_names):
        codes = np.asarray(missing_codes(name), dtype=features.dtype)
        for first in range(0, len(features), _BLOCK_STEPS):
            values = features[first : first + _BLOCK_STEPS, :, index]
            if is_speed(name):
                # One pass finds the few values worth a second look: every code lies outside the range,
                # and NaN compares false.
                odd = ~((values >= 0.0) & (values <= MAX_SPEED))
            else:
                odd = np.isinf(values) | np.isin(values, codes)
            if odd.any():
                _mark(values, odd, codes, f"{where}: feature {name!r}", first)


def _mark(values: np.ndarray, odd: np.ndarray, codes: np.ndarray, where: str, first: int) -> None:
    """Write NaN over the codes among the odd values and refuse what is no code."""
    steps, detectors = np.nonzero(odd)
    found = values[steps, detectors]
    is_code = np.isin(found, codes)
    wrong = ~is_code & ~np.isnan(found)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InputError(
            f"{where} has the impossible value {found[at]:g} at step {first + steps[at]}, detector index "
            f"{detectors[at]}; a speed lies within 0–{MAX_SPEED:g} and no value is infinite: "
            "mark missing values as NaN, -99, -1 or 255"
        )
    values[steps[is_code], detectors[is_code]] = np.nan


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
    """Format datetime64[s] as the file layout requires."""
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
    """Format a step length in the largest unit that divides it."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def common_step_seconds(times: np.ndarray) -> int | None:
    """Return the commonest distance between neighbouring times, or None where there is only one time."""
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
