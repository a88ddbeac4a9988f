"""Preparation: split by time first; nothing of the future or of another part reaches a window."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from social_xlstm.config import DataConfig, SplitConfig
from social_xlstm.data import hdf5
from social_xlstm.data.hdf5 import TrafficSet
from social_xlstm.data.parts import fill, split_bounds, training_means
from social_xlstm.data.positions import project
from social_xlstm.data.prepare import Prepared, prepare
from social_xlstm.data.scaler import Scaler
from social_xlstm.data.synthetic import SyntheticOptions, generate
from social_xlstm.errors import InputError

NAN = np.nan
METHODS = ("linear", "forward", "mean", "zero")


def _set(values: np.ndarray, step_seconds: int = 300) -> TrafficSet:
    """Make a set of one feature from [T,N] numbers."""
    values = np.asarray(values, dtype=np.float32)
    times = np.datetime64("2020-01-01", "s") + np.arange(len(values)) * np.timedelta64(step_seconds, "s")
    return TrafficSet(values[:, :, None], times, tuple(f"d{i}" for i in range(values.shape[1])), ("speed",))


@pytest.mark.parametrize(
    ("steps", "shares", "bounds"),
    [
        (100, (0.7, 0.1, 0.2), [(0, 70), (70, 80), (80, 100)]),
        (2016, (0.8, 0.0, 0.2), [(0, 1612), (1612, 1612), (1612, 2016)]),
        (2016, (0.7, 0.1, 0.2), [(0, 1411), (1411, 1612), (1612, 2016)]),
        (10, (0.5, 0.1, 0.1), [(0, 5), (5, 6), (6, 7)]),
        (10, (1.0, 0.0, 0.0), [(0, 10), (10, 10), (10, 10)]),
    ],
)
def test_parts_follow_one_another(steps: int, shares: tuple, bounds: list) -> None:
    """Shares are cut in the order of time, without overlap, and rounding moves no bound."""
    assert bounds == list(split_bounds(steps, SplitConfig(*shares)).values())


@pytest.mark.parametrize(
    "shares", [(0.0, 0.5, 0.5), (0.8, 0.2, 0.2), (-0.1, 0.5, 0.5), (1.2, 0.0, 0.0), (NAN, 0.1, 0.1)]
)
def test_shares_that_cut_no_axis_are_refused(shares: tuple) -> None:
    """Shares lie within 0 and 1, there is a training part, and together they are at most the whole."""
    with pytest.raises(InputError, match=r"data\.split is"):
        split_bounds(100, SplitConfig(*shares))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("linear", [7.0, 1.0, 2.0, 3.0, 4.0, 4.0]),
        ("forward", [7.0, 1.0, 1.0, 1.0, 4.0, 4.0]),
        ("mean", [7.0, 1.0, 7.0, 7.0, 4.0, 7.0]),
        ("zero", [0.0, 1.0, 0.0, 0.0, 4.0, 0.0]),
    ],
)
def test_gaps_are_filled_by_the_chosen_method(method: str, expected: list[float]) -> None:
    """Before its first value a detector gets its training mean, after its last one the last is held."""
    column = np.array([NAN, 1, NAN, NAN, 4, NAN], dtype=np.float32).reshape(-1, 1, 1)
    filled = fill(column, np.arange(6), method, np.full((1, 1), 7.0, dtype=np.float32))
    assert expected == filled.values[:, 0, 0].tolist()


def test_lines_are_drawn_by_time_and_not_by_count() -> None:
    """Where steps are not equally far apart, the line follows the clock."""
    column = np.array([0, NAN, 10], dtype=np.float32).reshape(-1, 1, 1)
    filled = fill(column, np.array([0, 100, 1000]), "linear", np.zeros((1, 1), dtype=np.float32))
    assert filled.values[1, 0, 0] == 1.0


def test_an_unknown_way_to_fill_is_refused() -> None:
    """The known ways are listed."""
    with pytest.raises(InputError, match="linear, forward, mean, zero"):
        fill(np.zeros((1, 1, 1), dtype=np.float32), np.arange(1), "magic", np.zeros((1, 1)))


def test_a_detector_without_any_value_gets_the_mean_of_all() -> None:
    """Means are per detector, and of the whole feature where a detector has nothing."""
    values = np.array([[[1.0], [NAN]], [[3.0], [NAN]]], dtype=np.float32)
    assert [[2.0], [2.0]] == training_means(values).tolist()


@pytest.mark.parametrize("normalize", ["standard", "minmax", "max", "none"])
def test_a_window_that_ends_in_a_gap_sees_the_held_value(normalize: str) -> None:
    """The line to a value after the window would tell its future; windows further on may use it."""
    values = np.array([10, 20, NAN, NAN, 50, 60, 70, 80, 90, 100], dtype=np.float32).reshape(-1, 1)
    cfg = DataConfig(
        sequence_length=4, prediction_length=1, normalize=normalize, split=SplitConfig(1.0, 0.0, 0.0)
    )
    prepared = prepare(cfg, _set(values))
    found = prepared.scaler.inverse(prepared.train.gather(np.arange(2)).features).flatten(1)
    torch.testing.assert_close(torch.tensor([[10.0, 20, 20, 20], [20, 30, 40, 50]]), found)


def _all(prepared: Prepared, part: str) -> list[torch.Tensor]:
    windows = getattr(prepared, part)
    batch = windows.gather(np.arange(len(windows)))
    return [batch.features, batch.targets, batch.mask]


def _speeds(seed: int, steps: int, detectors: int, missing: float) -> np.ndarray:
    """Draw speeds with gaps; the first step has values, so that there is something to learn from."""
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(0, 200, (steps, detectors)).astype(np.float32)
    speeds[rng.random(speeds.shape) < missing] = NAN
    speeds[0] = 50
    return speeds


SEEDS, MISSING = st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.6, 0.95])


@settings(max_examples=100, deadline=None)
@given(
    SEEDS,
    MISSING,
    st.integers(20, 39),
    st.booleans(),
    st.sampled_from(METHODS),
    st.sampled_from(["standard", "minmax", "max"]),
)
def test_nothing_leaks_from_the_future_or_another_part(
    seed: int, missing: float, cut: int, silent: bool, method: str, normalize: str
) -> None:
    """Changing all values after a step changes no input that ends by it, no earlier part, no scaler."""
    before, after = _speeds(seed, 40, 2, missing), _speeds(seed + 1, 40, 2, missing)
    if silent:
        after[:] = NAN
    changed = np.concatenate([before[:cut], after[cut:]])  # the scaler may know all of the training part
    cfg = DataConfig(
        sequence_length=3, prediction_length=2, fill_missing=method, normalize=normalize,
        split=SplitConfig(0.5, 0.25, 0.25),
    )  # fmt: skip
    one, two = prepare(cfg, _set(before)), prepare(cfg, _set(changed))
    assert one.scaler.state_dict() == two.scaler.state_dict()
    for expected, found in zip(_all(one, "train"), _all(two, "train"), strict=True):
        assert torch.equal(expected, found)
    for part, offset in (("val", 20), ("test", 30)):
        unchanged = max(0, min(len(getattr(one, part)), cut - offset - 2))  # windows whose input ends by then
        assert torch.equal(_all(one, part)[0][:unchanged], _all(two, part)[0][:unchanged])


@settings(max_examples=60, deadline=None)
@given(SEEDS, MISSING, st.sampled_from(METHODS))
def test_a_later_part_does_not_see_an_earlier_one(seed: int, missing: float, method: str) -> None:
    """With statistics alike, the validation part is filled from its own values alone."""
    training, others = _speeds(seed, 20, 1, missing), _speeds(seed + 1, 20, 1, missing)
    others[:3] = NAN
    cfg = DataConfig(
        sequence_length=3, prediction_length=1, fill_missing=method, normalize="max",
        split=SplitConfig(0.5, 0.5, 0.0),
    )  # fmt: skip
    one = prepare(cfg, _set(np.concatenate([training, others])))
    two = prepare(cfg, _set(np.concatenate([training[::-1], others])))
    for expected, found in zip(_all(one, "val"), _all(two, "val"), strict=True):
        torch.testing.assert_close(expected, found, rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(SEEDS, MISSING, st.sampled_from(METHODS))
def test_masks_remember_what_was_missing(seed: int, missing: float, method: str) -> None:
    """The mask is true exactly where the target was measured, and those targets are the measured values."""
    values = _speeds(seed, 12, 2, missing)
    cfg = DataConfig(
        sequence_length=2, prediction_length=2, fill_missing=method, split=SplitConfig(1.0, 0.0, 0.0)
    )
    prepared = prepare(cfg, _set(values))
    for start in range(len(prepared.train)):
        sample = prepared.train[start]
        raw = values[start + 2 : start + 4, :, None]
        np.testing.assert_array_equal(~np.isnan(raw), sample.mask.numpy())
        found = prepared.scaler.inverse(sample.targets).numpy()
        np.testing.assert_allclose(raw[~np.isnan(raw)], found[sample.mask.numpy()], rtol=1e-4, atol=1e-3)
        assert torch.isfinite(sample.features).all()
        assert torch.isfinite(sample.targets).all()


@pytest.mark.parametrize(
    ("kind", "offset", "divisor"),
    [("standard", 20.0, np.sqrt(200 / 3)), ("minmax", 10.0, 20.0), ("max", 0.0, 30.0), ("none", 0.0, 1.0)],
)
def test_each_scaler_learns_its_numbers(kind: str, offset: float, divisor: float) -> None:
    """Missing values are passed over."""
    values = np.array([10, NAN, 20, 30], dtype=np.float32).reshape(-1, 1, 1)
    scaler = Scaler.from_training(values, kind, ("speed",))
    np.testing.assert_allclose([offset, divisor], [scaler.offset[0], scaler.divisor[0]])


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=24).map(
        lambda v: v[: len(v) // 2 * 2]
    ),
    kind=st.sampled_from(["standard", "minmax", "max", "none"]),
)
def test_scaling_is_undone_by_its_inverse(values: list[float], kind: str) -> None:
    """Arrays and tensors come back in their own type, and a stored scaler gives the same numbers."""
    array = np.array(values, dtype=np.float32).reshape(-1, 1, 2)
    scaler = Scaler.from_training(array, kind, ("a", "b"))
    tolerance = {"rtol": 1e-4, "atol": 1e-4 * max(1.0, np.abs(array).max())}
    scaled = scaler.transform(array)
    assert np.float32 == scaled.dtype
    np.testing.assert_allclose(array, scaler.inverse(scaled), **tolerance)
    tensor = scaler.inverse(scaler.transform(torch.from_numpy(array)))
    assert torch.float32 == tensor.dtype
    np.testing.assert_allclose(array, tensor.numpy(), **tolerance)
    restored = Scaler.from_state_dict(json.loads(json.dumps(scaler.state_dict())))
    np.testing.assert_array_equal(scaled, restored.transform(array))


def test_a_constant_feature_is_not_divided_by_zero() -> None:
    """A feature that never changes is shifted, not scaled."""
    for kind in ("standard", "minmax", "max"):
        scaler = Scaler.from_training(np.full((3, 2, 1), 0.0, dtype=np.float32), kind, ("speed",))
        assert [1.0] == scaler.divisor.tolist()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"kind": "odd", "offset": [0], "divisor": [1]},
        {"kind": "max", "offset": [0], "divisor": [0]},
        {"kind": "max", "offset": [0], "divisor": [1, 2]},
        {"kind": "max", "offset": "x", "divisor": [1]},
    ],
)
def test_a_damaged_scaler_is_refused(state: dict) -> None:
    """A checkpoint's scaler must be whole."""
    with pytest.raises(InputError, match="scaler's state is damaged"):
        Scaler.from_state_dict(state)


def test_a_scaler_needs_the_features_it_learnt() -> None:
    """Values with another number of features are refused, as is a feature that has no value."""
    scaler = Scaler.from_training(np.ones((2, 1, 2), dtype=np.float32), "max", ("a", "b"))
    with pytest.raises(InputError, match="values have 3 features"):
        scaler.transform(np.zeros((4, 3)))
    with pytest.raises(InputError, match="feature 'a' has no value"):
        Scaler.from_training(np.full((2, 1, 1), NAN), "max", ("a",))
    with pytest.raises(InputError, match=r"data\.normalize is 'odd'"):
        Scaler.from_training(np.ones((2, 1, 1)), "odd", ("a",))


@pytest.fixture(scope="module")
def traffic() -> TrafficSet:
    """Make a set with gaps."""
    return generate(SyntheticOptions(detectors=6, steps=300, features=("speed", "flow"), missing_share=0.2))


def test_prepared_data_carries_what_a_model_needs(tmp_path: Path, traffic: TrafficSet) -> None:
    """Positions in metres, directions and names come from the file, in the file's order."""
    hdf5.write(tmp_path / "set.h5", traffic)
    prepared = prepare(DataConfig(path=str(tmp_path / "set.h5")))
    np.testing.assert_array_equal(project(traffic.positions, traffic.vdids), prepared.positions_xy.numpy())
    assert torch.float64 == prepared.positions_xy.dtype
    assert (traffic.vdids, traffic.directions) == (prepared.vdids, prepared.directions)
    assert (("speed", "flow"), traffic.units) == (prepared.feature_names, prepared.units)
    assert (210 - 14, 30 - 14, 60 - 14) == (len(prepared.train), len(prepared.val), len(prepared.test))


def test_chosen_detectors_and_features_come_in_the_order_chosen(traffic: TrafficSet) -> None:
    """A selection is as if the file held nothing else."""
    chosen = (traffic.vdids[4], traffic.vdids[1])
    cfg = DataConfig(
        selected_vdids=chosen, selected_features=("flow",), normalize="none", fill_missing="zero"
    )
    prepared = prepare(cfg, traffic)
    expected = np.nan_to_num(traffic.features[:12, [4, 1], 1])
    np.testing.assert_array_equal(expected, prepared.train[0].features[:, :, 0].numpy())
    np.testing.assert_array_equal(project(traffic.positions[[4, 1]], chosen), prepared.positions_xy.numpy())
    assert (traffic.directions[4], traffic.directions[1]) == prepared.directions


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"selected_vdids": ("400001",)}, "unknown detector '400001'; known are for example 4000"),
        ({"selected_features": ("sped",)}, "unknown feature 'sped'; known are for example speed"),
        ({"selected_features": ("speed", "speed")}, "names a feature twice"),
        ({"selected_vdids": ()}, "is empty"),
        ({"sequence_length": 400}, "nowhere the 403 in a row"),
        ({"split": SplitConfig(0.95, 0.04, 0.01)}, "the val part has 12 steps"),
        ({"sequence_length": 0}, "data.sequence_length is 0"),
        ({"stride": 0}, "data.stride is 0"),
        ({"path": "nothing.h5"}, "nothing.h5 cannot be opened"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(
    traffic: TrafficSet, changed: dict, words: str
) -> None:
    """Unknown names, windows longer than a part and missing files are named."""
    with pytest.raises(InputError, match=words):
        prepare(DataConfig(**changed), None if "path" in changed else traffic)


def test_missing_positions_are_an_error_unless_not_needed(traffic: TrafficSet) -> None:
    """A detector without a position stops a training with pooling and no other."""
    partial = traffic.positions.copy()
    partial[2] = NAN
    lacking = replace(traffic, positions=partial)
    with pytest.raises(InputError, match=r"1 of 6 detectors have no position \(first: 400014\)"):
        prepare(DataConfig(), lacking)
    assert prepare(DataConfig(), lacking, use_positions=False).positions_xy is None
    assert prepare(DataConfig(), replace(traffic, positions=None)).positions_xy is None


def test_error_codes_in_a_given_set_are_missing(traffic: TrafficSet) -> None:
    """A set built in memory obeys the rules of files, and is left as it was."""
    features = traffic.features.copy()
    features[12, 0, 0] = 255
    prepared = prepare(DataConfig(), replace(traffic, features=features))
    assert not prepared.train[0].mask[0, 0, 0]
    assert features[12, 0, 0] == 255


@pytest.mark.parametrize("storage", ["memmap", "file"])
@pytest.mark.parametrize("given_as", ["path", "set"])
def test_every_storage_holds_the_same_numbers(
    tmp_path: Path, traffic: TrafficSet, storage: str, given_as: str
) -> None:
    """Where prepared data lives changes no window, also when it was kept by an earlier run."""
    hdf5.write(tmp_path / "set.h5", traffic)
    cfg = DataConfig(path=str(tmp_path / "set.h5"), split=SplitConfig(0.8, 0.0, 0.2))
    given = traffic if given_as == "set" else None
    expected = prepare(cfg, given)
    for _ in range(2):  # made, then found
        found = prepare(replace(cfg, storage=storage), given)
        for part in ("train", "val", "test"):
            for one, two in zip(_all(expected, part), _all(found, part), strict=True):
                assert torch.equal(one, two)
        assert expected.scaler.state_dict() == found.scaler.state_dict()
        assert torch.equal(expected.positions_xy, found.positions_xy)
        for name in ("vdids", "feature_names", "directions", "units"):
            assert getattr(expected, name) == getattr(found, name)


def test_kept_data_is_used_until_something_changes(
    tmp_path: Path, traffic: TrafficSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run does not read the file; another setting or another file is prepared anew."""
    path = tmp_path / "set.h5"
    hdf5.write(path, traffic)
    reads = []
    real = hdf5.read
    monkeypatch.setattr(hdf5, "read", lambda *args, **options: reads.append(args) or real(*args, **options))
    cfg = DataConfig(path=str(path), storage="memmap", cache_dir=str(tmp_path / "kept"))
    prepare(cfg)
    prepare(replace(cfg, sequence_length=6))
    assert len(reads) == 1
    prepare(replace(cfg, normalize="max"))
    assert len(reads) == 2
    hdf5.write(path, generate(SyntheticOptions(detectors=6, steps=320)))
    assert 320 * 0.7 - 14 == len(prepare(cfg).train)


def test_damaged_kept_data_is_named(tmp_path: Path, traffic: TrafficSet) -> None:
    """A broken cache says which folder to remove."""
    cfg = DataConfig(storage="memmap", cache_dir=str(tmp_path))
    prepare(cfg, traffic)
    for file in tmp_path.rglob("train.values.npy"):
        file.write_bytes(b"")
    with pytest.raises(InputError, match="remove that folder"):
        prepare(cfg, traffic)
