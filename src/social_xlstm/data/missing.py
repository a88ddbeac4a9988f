"""What counts as a missing value, and which values are impossible."""

import numpy as np

from social_xlstm.errors import InputError

MAX_SPEED = 200.0
_NEGATIVE_CODES = (-99.0, -1.0)
# 255 is a detector's error code, but also a plausible number of vehicles in five minutes.
_ALL_CODES = (*_NEGATIVE_CODES, 255.0)
_BLOCK_STEPS = 4096  # keeps temporaries small beside a set of hundreds of megabytes


def is_speed(name: str) -> bool:
    """Tell whether a feature's name says it is a speed."""
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
