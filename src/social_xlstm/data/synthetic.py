"""Traffic shaped like PEMS-BAY: freeways, rhythm of day and week, congestion moving upstream, gaps."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from social_xlstm.data import hdf5, shards
from social_xlstm.data.positions import EARTH_RADIUS_METRES
from social_xlstm.data.sets import TrafficSet, parse_timestamps
from social_xlstm.errors import InputError

_CENTRE = np.array([37.35, -121.93])
# Heading (degrees from north), start east and north of the centre (km), bend (degrees per km).
_ROUTES = (
    (315.0, 10.0, -10.0, 0.6),
    (0.0, -3.0, -12.0, -1.2),
    (80.0, -12.0, 2.0, 0.9),
    (30.0, 2.0, -9.0, -0.8),
    (285.0, 11.0, 6.0, -0.7),
    (350.0, 6.0, -3.0, 1.1),
)
_HALF_MEDIAN_METRES = 19.0  # opposite carriageways: about 39 m apart in the real set
_MEAN_SPACING_KM = 0.6
_COMPASS = ("N", "E", "S", "W")
UNITS = {"speed": "mph", "flow": "vehicles per step", "occupancy": "%"}
WAVE_KM_PER_HOUR = 18.0  # the speed at which a queue's tail moves against the traffic
_WEEKDAY_LOAD = np.array([0.9, 1.0, 1.0, 1.05, 1.1, 0.25, 0.12], dtype=np.float32)  # Monday first
_BOTTLENECKS = 2  # per carriageway
_INCIDENTS_PER_DAY = 0.15  # per carriageway
_OUTAGE_HOURS = 2.0


@dataclass(frozen=True, eq=False)
class Network:
    """N detectors on carriageways; detectors of one carriageway share traffic."""

    positions: np.ndarray  # float64 [N, 2]: latitude, longitude
    carriageway: np.ndarray  # int64 [N]
    kilometre: np.ndarray  # float64 [N], growing with the direction of travel
    directions: tuple[str, ...]
    lanes: tuple[int, ...]
    lengths_km: tuple[float, ...]


def build_network(detectors: int, rng: np.random.Generator) -> Network:
    """Spread detectors over as many freeways as their number fills, both directions of each."""
    routes = _ROUTES[: max(1, min(len(_ROUTES), detectors // 12))]
    share = np.array_split(np.arange(detectors), 2 * len(routes))
    longest = len(share[0])
    # Loops are cut into both carriageways at one place, so opposite detectors stand side by side.
    places = [_MEAN_SPACING_KM * np.arange(1, longest + 1) + rng.uniform(-0.2, 0.2, longest) for _ in routes]
    parts = [
        _carriageway(routes[index // 2], places[index // 2][: len(rows)], reverse=bool(index % 2))
        for index, rows in enumerate(share)
    ]
    kilometre = np.concatenate([part[1] for part in parts])
    return Network(
        positions=np.concatenate([part[0] for part in parts]),
        carriageway=np.repeat(np.arange(len(share)), [len(rows) for rows in share]),
        kilometre=kilometre,
        directions=tuple(direction for part in parts for direction in part[2]),
        lanes=tuple(int(lane) for lane in rng.integers(3, 6, detectors)),
        lengths_km=tuple(float(length) for length in np.round(rng.uniform(0.3, 1.0, detectors), 3)),
    )


def _carriageway(
    route: tuple[float, float, float, float], along: np.ndarray, *, reverse: bool
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Place the detectors of one direction of one freeway along its bend."""
    heading, east, north, bend = route
    turned = np.radians(heading + bend * along)
    # The curve's closed form: the integral of a heading that turns evenly.
    rate = np.radians(bend)
    x = east * 1000 + 1000 * (np.cos(np.radians(heading)) - np.cos(turned)) / rate
    y = north * 1000 + 1000 * (np.sin(turned) - np.sin(np.radians(heading))) / rate
    side = -1.0 if reverse else 1.0  # traffic keeps to the right of the median
    x, y = x + side * _HALF_MEDIAN_METRES * np.cos(turned), y - side * _HALF_MEDIAN_METRES * np.sin(turned)
    degrees = np.degrees(np.stack([y, x / np.cos(np.radians(_CENTRE[0]))], axis=1) / EARTH_RADIUS_METRES)
    travel = np.degrees(turned) + (180.0 if reverse else 0.0)
    # One letter for the whole carriageway, as road signs have it.
    middle = travel[len(travel) // 2] if len(travel) else 0.0
    letter = _COMPASS[round(middle / 90.0) % 4]
    return np.round(_CENTRE + degrees, 6), (-along if reverse else along), [letter] * len(along)


@dataclass(frozen=True)
class SyntheticOptions:
    """What to generate; the defaults are the shape of PEMS-BAY."""

    detectors: int = 325
    steps: int = 52_116
    features: tuple[str, ...] = ("speed",)
    start: str = "2017-01-01 00:00:00"
    frequency_seconds: int = 300
    missing_share: float = 0.01
    seed: int = 0


def generate(options: SyntheticOptions) -> TrafficSet:
    """Make a set that depends on the options alone."""
    _check(options)
    # A stream of its own for each ingredient: adding flow must not change the speeds.
    streams = np.random.SeedSequence(options.seed).spawn(5)
    network_rng, jam_rng, noise_rng, flow_rng, gap_rng = (np.random.default_rng(stream) for stream in streams)
    network = build_network(options.detectors, network_rng)
    start = parse_timestamps([options.start], "start")[0]
    times = start + np.arange(options.steps) * np.timedelta64(options.frequency_seconds, "s")
    jam = _congestion(network, times, options.frequency_seconds, jam_rng)
    speed = _speeds(jam, noise_rng)
    columns = {"speed": speed}
    if set(options.features) - {"speed"}:
        columns["flow"] = _flows(network, jam, times, options.frequency_seconds, flow_rng)
        per_hour = columns["flow"] * np.float32(3600 / options.frequency_seconds)
        density = per_hour / speed / np.asarray(network.lanes, dtype=np.float32)
        columns["occupancy"] = np.minimum(density * np.float32(0.45), 100.0)
    features = np.stack([columns[name] for name in options.features], axis=-1)
    features[_gaps(features.shape[:2], options, gap_rng)] = np.nan
    return TrafficSet(
        features=features,
        timestamps=times,
        vdids=tuple(str(400_000 + 7 * index) for index in range(options.detectors)),
        feature_names=tuple(options.features),
        positions=network.positions,
        directions=network.directions,
        lanes=network.lanes,
        lengths_km=network.lengths_km,
        units={name: UNITS[name] for name in options.features},
        source=f"synthetic, seed {options.seed}",
    )


def synth_file(
    output: str | Path, options: SyntheticOptions, *, steps_per_shard: int | None = None
) -> TrafficSet:
    """Generate a set and write it to a file, or to a folder of shards."""
    traffic = generate(options)
    if steps_per_shard is None:
        hdf5.write(output, traffic)
    else:
        shards.write(output, traffic, steps_per_shard=steps_per_shard)
    return traffic


def _check(options: SyntheticOptions) -> None:
    """Refuse options that describe no set."""
    for name in ("detectors", "steps", "frequency_seconds"):
        if getattr(options, name) < 1:
            raise InputError(f"{name} is {getattr(options, name)}; it must be at least 1")
    if not 0.0 <= options.missing_share < 1.0:
        raise InputError(f"missing_share is {options.missing_share}; give a share from 0 to below 1")
    if options.seed < 0:
        raise InputError(f"seed is {options.seed}; give a whole number of at least 0")
    unknown = [name for name in options.features if name not in UNITS]
    if unknown or not options.features or len(set(options.features)) != len(options.features):
        raise InputError(
            f"features are {list(options.features)}; name each of {', '.join(UNITS)} at most once"
        )


def _congestion(
    network: Network, times: np.ndarray, step_seconds: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the congestion [T,N] from 0 (free) to 1 (standing), daily queues and incidents together."""
    seconds = (times - times[0].astype("datetime64[D]")).astype(np.int64)
    day, hour = seconds // 86_400, (seconds % 86_400 / 3600).astype(np.float32)
    days = int(day[-1]) + 1
    weekday = (
        times[0].astype("datetime64[D]").astype(np.int64) + 3 + np.arange(days)
    ) % 7  # day 0: a Thursday
    jam = np.zeros((len(times), len(network.kilometre)), dtype=np.float32)
    for carriageway in np.unique(network.carriageway):
        columns = np.flatnonzero(network.carriageway == carriageway)
        kilometre = network.kilometre[columns]
        local = np.zeros((len(times), len(columns)), dtype=np.float32)
        for number in range(_BOTTLENECKS):
            # Tidal: one direction queues in the morning, the opposite one in the evening.
            peak = (7.2, 16.3)[(carriageway + (number > 0 and rng.random() < 0.3)) % 2]
            begin = (peak + rng.normal(0.0, 0.35, days)).astype(np.float32)
            load = (np.clip(rng.normal(0.8, 0.2, days), 0.1, 1.2) * _WEEKDAY_LOAD[weekday]).astype(np.float32)
            upstream = rng.choice(kilometre) - kilometre
            local += _queue(hour - begin[day], load[day], upstream, hours=rng.uniform(1.6, 2.8))
        _add_incidents(local, kilometre, days, step_seconds, rng)
        jam[:, columns] = local
    return np.minimum(jam, np.float32(1.0))


def _add_incidents(
    jam: np.ndarray, kilometre: np.ndarray, days: int, step_seconds: int, rng: np.random.Generator
) -> None:
    """Add queues [T,n] that begin anywhere at any time, in place."""
    for _ in range(rng.poisson(_INCIDENTS_PER_DAY * days)):
        begin = int(rng.integers(len(jam)))
        rows = slice(begin, begin + int(5 * 3600 / step_seconds) + 1)
        since = np.arange(len(jam[rows]), dtype=np.float32) * np.float32(step_seconds / 3600)
        load = np.full(len(since), rng.uniform(0.4, 1.0), dtype=np.float32)
        upstream = rng.choice(kilometre) - kilometre
        jam[rows] += _queue(since - np.float32(0.15), load, upstream, hours=rng.uniform(0.4, 1.5))


def _queue(since_hours: np.ndarray, load: np.ndarray, upstream_km: np.ndarray, *, hours: float) -> np.ndarray:
    """Return one queue's congestion [T,n]: it reaches a detector later, and milder, the further upstream."""
    upstream = upstream_km.astype(np.float32)
    reach = np.where(upstream >= 0, np.exp(-upstream / 6.0), np.exp(np.minimum(upstream, 0.0) / 0.3))
    after = since_hours[:, None] - np.maximum(upstream, 0.0) / np.float32(WAVE_KM_PER_HOUR)
    rise = np.tanh(after * np.float32(6.0))
    fall = np.tanh((after - np.float32(hours)) * np.float32(4.0))
    return load[:, None] * reach.astype(np.float32) * (rise - fall) * np.float32(0.5)


def _speeds(jam: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn congestion into speeds [T,N], with noise that lasts a few steps and grows in queues."""
    steps, detectors = jam.shape
    free = rng.normal(66.0, 2.5, detectors).astype(np.float32)
    noise = rng.standard_normal((steps + 2, detectors), dtype=np.float32)
    lasting = (noise[2:] + noise[1:-1] + noise[:-2]) * np.float32(0.58)
    speed = free * (1 - np.float32(0.82) * jam) + lasting * (np.float32(1.3) + 3 * jam)
    return np.clip(speed, np.float32(3.0), np.float32(85.0))


def _flows(
    network: Network, jam: np.ndarray, times: np.ndarray, step_seconds: int, rng: np.random.Generator
) -> np.ndarray:
    """Return vehicles per step [T,N]: demand of the hour, throttled where traffic stands."""
    hour = (times - times.astype("datetime64[D]")).astype(np.int64) / 3600
    demand = 0.12 + np.exp(-(((hour - 8.0) / 2.5) ** 2)) + 0.95 * np.exp(-(((hour - 17.0) / 3.0) ** 2))
    full = np.asarray(network.lanes, dtype=np.float32) * np.float32(1500 * step_seconds / 3600)
    mean = demand.astype(np.float32)[:, None] * full * (1 - np.float32(0.35) * jam)
    noise = rng.standard_normal(jam.shape, dtype=np.float32)
    return np.maximum(np.rint(mean + np.sqrt(mean) * noise), np.float32(0.0))


def _gaps(shape: tuple[int, int], options: SyntheticOptions, rng: np.random.Generator) -> np.ndarray:
    """Choose the missing entries: half of them single, half in outages of hours."""
    gone = rng.random(shape, dtype=np.float32) < options.missing_share / 2
    mean_steps = max(1.0, _OUTAGE_HOURS * 3600 / options.frequency_seconds)
    outages = rng.poisson(options.missing_share / 2 * gone.size / mean_steps)
    starts, lengths = rng.integers(0, shape[0], outages), rng.geometric(1 / mean_steps, outages)
    for detector, start, length in zip(rng.integers(0, shape[1], outages), starts, lengths, strict=True):
        gone[start : start + length, detector] = True
    return gone
