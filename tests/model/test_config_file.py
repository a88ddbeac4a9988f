"""A configuration file becomes a Config or one InputError that names every problem."""

import contextlib
import dataclasses
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from social_xlstm import config_file
from social_xlstm.config import RULES, Config, LoaderConfig, value_at
from social_xlstm.errors import InputError

KEYS = sorted(config_file.known_keys(Config))


def problems(text: str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        config_file.parse(text, overrides)
    return str(caught.value)


def test_empty_text_is_the_reference_configuration() -> None:
    """Keys that are not named keep the values of config.py."""
    assert Config() == config_file.parse("")
    assert Config() == config_file.parse("data:\ntrainer: {}\n# nothing else")


def test_the_shipped_default_is_a_valid_configuration() -> None:
    """`train` without --config uses the file in the package."""
    assert "data.h5" == config_file.load().data.path


@pytest.mark.parametrize("path", sorted(Path("configs").glob("*.yaml")), ids=lambda path: path.name)
def test_example_configurations_are_valid(path: Path) -> None:
    """Every example in configs/ can be used as it stands."""
    assert isinstance(config_file.load(path), Config)


def test_every_known_key_of_the_original_is_read() -> None:
    """The keys users of the original know reach their fields, with the types the fields have."""
    config = config_file.parse("""
data:
  path: bay.h5
  split: {train: 0.6, val: 0.2, test: 0.2}
  sequence_length: 24
  prediction_length: 6
  stride: 2
  normalize: minmax
  selected_features: [speed]
  selected_vdids: [0012, 400017]
  fill_missing: forward
  batch_format: distributed
  loader: {batch_size: 128, num_workers: 8, pin_memory: no, prefetch_factor: 4, persistent_workers: on,
           drop_last: false, timeout: 60}
model: {xlstm: {embedding_dim: 64, num_blocks: 4, slstm_at: [1], slstm_backend: cuda, context_length: 24,
                dropout: 0}}
social_pooling: {enabled: true, pool_type: max, radius: 5e3}
trainer: {precision: 16-mixed, accumulate_grad_batches: 2, log_every_n_steps: 10, max_epochs: 3, devices: 2}
optimizer: {name: adamw, lr: 1e-4, weight_decay: 1e-2}
experiment: {seed: 7}
""")
    assert ("0012", "400017") == config.data.selected_vdids
    assert (
        LoaderConfig(128, 8, pin_memory=False, prefetch_factor=4, drop_last=False, timeout=60.0)
        == config.data.loader
    )
    assert (1e-4, 5000.0, 0.0) == (
        config.optimizer.lr,
        config.social_pooling.radius,
        config.model.xlstm.dropout,
    )
    assert ("16-mixed", 2, 7) == (config.trainer.precision, config.trainer.devices, config.experiment.seed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: {loader: {batchsize: 3}}", "did you mean data.loader.batch_size?"),
        ("data: {batch_size: 3}", "did you mean data.loader.batch_size?"),
        ("trainr: {max_epochs: 3}", "did you mean trainer?"),
        ("optimizer: {qqqq: 1}", "known here: name, lr, weight_decay"),
        ("trainer: {precision: 16}", "one of 32-true, 16-mixed, bf16-mixed"),
        ("trainer: {precision: bf16}", "did you mean bf16-mixed?"),
        ("trainer: {max_epochs: 3.5}", "trainer.max_epochs: '3.5' is not a whole number"),
        ("trainer: {max_epochs: true}", "is not a whole number"),
        ("trainer: {max_epochs: 0}", "trainer.max_epochs: 0 must be between 1 and"),
        ("trainer: {compile: maybe}", "is not true or false"),
        ("trainer: 3", "trainer: '3' is not a section"),
        ("trainer: {device: gpu}", "must be auto, cpu, cuda or cuda:<index>"),
        ("optimizer: {lr: nan}", "is not a number"),
        ("optimizer: {lr: .inf}", "must be above 0 and finite"),
        ("optimizer: {lr: [1]}", "a list of 1 is not a number"),
        ("data: {loader: {num_workers: many}}", "is not a whole number or auto"),
        ("data: {loader: {num_workers: -1}}", "auto or between 0 and 1024"),
        ("data: {split: {train: 0.9, val: 0.9}}", "add up to 2"),
        ("data: {selected_vdids: []}", "a list of at least one, none twice"),
        ('data: {path: "a\\0b"}', "text without control characters"),
        ("data: {sequence_length: 24}", "context_length: 12 is shorter than data.sequence_length 24"),
        ("model: {xlstm: {embedding_dim: 30}}", "cannot be divided among 4 heads"),
        ("model: {xlstm: {slstm_at: [9]}}", "block 9 does not exist"),
        ("model: {xlstm: {slstm_at: [1, 1]}}", "named twice"),
        ("experiment: {name: ../x}", "letters, digits"),
        ("- a\n- b", "a list of 2 where sections"),
        ("data: {path: a, path: b}", "'path' is written twice (line 1, column 17)"),
        ("data: {path", "is not valid YAML"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_bad_values_are_named_with_a_remedy(text: str, said: str) -> None:
    """Each kind of mistake is refused in words that name the key and what would be right."""
    assert said in problems(text)


def test_all_problems_are_reported_at_once() -> None:
    """A user corrects a file in one round."""
    text = problems("data: {pth: a, stride: 0}\noptimizer: {lr: -1}\ntrainer: {compile: 7}")
    assert "configuration: 4 problems" == text.splitlines()[0]
    assert ["data.pth", "trainer.compile", "data.stride", "optimizer.lr"] == [
        line.split(":")[0].strip() for line in text.splitlines()[1:]
    ]


def test_overrides_win_over_the_file() -> None:
    """`--set a.b=c` is read as if the file had said it, lists and empty values included."""
    config = config_file.parse(
        "optimizer: &twice {name: adam}\nexperiment: *twice\ntrainer: {max_epochs: 5, gradient_clip_val: 2}",
        [
            "trainer.max_epochs=7",
            "data.selected_vdids=[007, b]",
            "trainer.gradient_clip_val=",
            "optimizer.lr = 1e-2",
        ],
    )
    assert (7, ("007", "b"), None, 0.01) == (
        config.trainer.max_epochs,
        config.data.selected_vdids,
        config.trainer.gradient_clip_val,
        config.optimizer.lr,
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.max_epochs", "write it as section.key=value"),
        ("=3", "write it as section.key=value"),
        ("trainer..x=3", "write it as section.key=value"),
        ("trainer.max_epoch=3", "did you mean trainer.max_epochs?"),
        ("trainer.max_epochs.x=3", "a section is not a whole number"),
        ("trainer=3", "trainer: '3' is not a section"),
        ("data.path=[", "not valid YAML"),
    ],
)
def test_bad_overrides_are_refused(override: str, said: str) -> None:
    """An override is checked like a line of the file."""
    assert said in problems("", override)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x01", None, "folder"])
def test_files_that_cannot_be_read_are_refused(content: bytes | str | None, tmp_path: Path) -> None:
    """A binary file, a missing file and a folder end in one clear message."""
    path = tmp_path / "c.yaml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(InputError, match=r"c\.yaml"):
        config_file.load(path)


def test_every_number_has_a_range() -> None:
    """No number or text field is left without a rule, so that a new key cannot be forgotten."""
    free = {"data.normalize", "model.xlstm.slstm_at"}
    hints = {key: type(value_at(Config(), key)) for key in KEYS}
    numbers = {key for key, kind in hints.items() if kind in (int, float)}
    assert set() == numbers - set(RULES) - free
    assert set() == set(RULES) - set(KEYS)


def test_differences_name_both_values() -> None:
    """A resume can say in which keys it was changed."""
    other = config_file.parse("optimizer: {lr: 0.5}")
    assert ["optimizer.lr: 0.001 → 0.5"] == config_file.differences(Config(), other)
    assert [] == config_file.differences(Config(), other, ["data.path"])


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.dates(),
    st.sampled_from(["auto", "16-mixed", "1e-3", "cuda", "[", "&a", "*a", "!!int x", "~", "<<", "\0", "-0"]),
)  # fmt: skip
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), trees, max_size=5))
def test_any_value_at_any_key_is_a_config_or_an_input_error(values: dict) -> None:
    """Whatever stands at a known key, the result is a Config or an InputError, and nothing else."""
    tree: dict = {}
    for key, value in values.items():
        section = tree
        for name in key.split(".")[:-1]:
            section = section.setdefault(name, {})
        section[key.rpartition(".")[2]] = value
    with contextlib.suppress(InputError):
        assert isinstance(config_file.parse(yaml.safe_dump(tree, allow_unicode=True)), Config)


@settings(max_examples=200, deadline=None)
@given(
    st.text() | st.text(alphabet="{}[]:,&*!|>-?%@`'\"# \n\tab01", max_size=40),
    st.lists(st.text(), max_size=2),
)
def test_any_text_is_a_config_or_an_input_error(text: str, overrides: list[str]) -> None:
    """Arbitrary text and overrides never end in another exception."""
    with contextlib.suppress(InputError):
        assert isinstance(config_file.parse(text, overrides), Config)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_config_or_an_input_error(content: bytes) -> None:
    """Arbitrary files never end in another exception."""
    with contextlib.suppress(InputError):
        config_file.parse(content.decode("utf-8", errors="surrogateescape"))


paths = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1)
detectors = st.lists(
    st.sampled_from(["1", "null", "no", "0x1", "1e3", "~", "ä"]), min_size=1, unique=True
).map(tuple)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_dumped_config_reads_back_the_same(data: st.DataObject) -> None:
    """`parse(dump(config)) == config`, so that a run can be repeated from what lies beside it."""
    config = Config()
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(
            config.data,
            path=data.draw(paths),
            selected_vdids=data.draw(st.none() | detectors),
        ),
        optimizer=dataclasses.replace(config.optimizer, lr=data.draw(st.floats(1e-300, 1e300))),
        social_pooling=dataclasses.replace(
            config.social_pooling, radius=data.draw(st.floats(0, math.inf)), enabled=data.draw(st.booleans())
        ),
        trainer=dataclasses.replace(
            config.trainer, gradient_clip_val=data.draw(st.none() | st.floats(1e-9, 1e9))
        ),
    )
    assert config == config_file.parse(config_file.dump(config))


def test_aliases_that_multiply_stay_small() -> None:
    """A file of nested aliases neither fills the memory nor the message."""
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    assert len(problems("\n".join([*lines, "data: {path: *a39}"]))) < 10_000
