"""Any container reaches the device with its type, order and non-tensors intact."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from social_xlstm.train.transfer import move_to_device

META = torch.device("meta")  # a device that is not the CPU and exists everywhere


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Open:
    tensor: Any
    name: str = "x"


@dataclass(frozen=True)
class Frozen:
    tensor: Any
    built: list[str] = field(default_factory=list)
    derived: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.built.append("constructor")
        object.__setattr__(self, "derived", self.tensor)


@dataclass(frozen=True, slots=True)
class Slotted:
    tensor: Any
    number: int = 3


class Plain:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_every_container_keeps_its_type_and_its_other_values() -> None:
    """Tensors move; the structure around them, however nested, is the same afterwards."""
    value = {
        "pair": Pair(torch.ones(2), "text"),
        "open": Open(torch.ones(2)),
        "frozen": Frozen(torch.ones(2)),
        "slotted": Slotted(torch.ones(1)),
        "deep": [({"a": [torch.ones(1), None, 3]},), {1, 2}],
        "ordered": OrderedDict(b=torch.ones(1), a=1),
        "default": defaultdict(list, a=torch.ones(1)),
    }
    moved = move_to_device(value, META)
    assert list(value) == list(moved)
    assert {key: type(item) for key, item in value.items()} == {k: type(i) for k, i in moved.items()}
    devices = [
        moved["pair"].left, moved["open"].tensor, moved["frozen"].tensor, moved["frozen"].derived,
        moved["slotted"].tensor, moved["deep"][0][0]["a"][0], moved["ordered"]["b"], moved["default"]["a"],
    ]  # fmt: skip
    assert [META] * 8 == [tensor.device for tensor in devices]
    assert ("text", "x", 3) == (moved["pair"].right, moved["open"].name, moved["slotted"].number)
    assert [None, 3] == moved["deep"][0][0]["a"][1:]
    assert ["b", "a"] == list(moved["ordered"])
    assert list is moved["default"].default_factory
    assert torch.device("cpu") == value["frozen"].tensor.device, "the original stays where it was"
    assert ["constructor"] == value["frozen"].built, "it must not run again"


@pytest.mark.parametrize(
    "value", ["text", 3, None, {1, 2}, Plain(torch.ones(1)), Pair(1, 2), [1], {"a": ()}, Open]
)
def test_what_holds_no_tensor_is_the_same_object(value: Any) -> None:
    """Nothing is copied without need, and unknown objects are not searched."""
    assert value is move_to_device(value, META)


def test_a_batch_already_there_is_the_same_object() -> None:
    """Data resident on the device costs nothing to «move»."""
    batch = Frozen(torch.ones(2))
    assert batch is move_to_device(batch, "cpu")


def test_a_read_only_mapping_is_kept() -> None:
    """A mapping without item assignment is rebuilt from a dict."""
    moved = move_to_device(MappingProxyType({"a": torch.ones(1)}), META)
    assert (MappingProxyType, META) == (type(moved), moved["a"].device)


def test_copies_are_non_blocking_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's choice reaches every copy."""
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking: asked.append(non_blocking))
    move_to_device([torch.ones(1)], "cpu")
    move_to_device([torch.ones(1)], "cpu", non_blocking=False)
    assert [True, False] == asked


leaves = st.none() | st.integers() | st.just("tensor")
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.integers(), inner, max_size=3)
        | st.builds(Open, inner)
    ),
)


def shape_of(value: Any) -> Any:
    """Describe a structure by its types, with tensors' devices left out."""
    if isinstance(value, Open):
        return Open, shape_of(value.tensor)
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [shape_of(item) for item in value]
    return "tensor" if isinstance(value, torch.Tensor) else value


def with_tensors(value: Any) -> Any:
    """Put a tensor wherever the word stands."""
    if isinstance(value, Open):
        return Open(with_tensors(value.tensor))
    if isinstance(value, dict):
        return {key: with_tensors(item) for key, item in value.items()}
    if isinstance(value, Pair):
        return Pair(*(with_tensors(item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(with_tensors(item) for item in value)
    return torch.ones(1) if value == "tensor" else value


@settings(max_examples=100, deadline=None)
@given(nested)
def test_any_nesting_keeps_its_shape(value: Any) -> None:
    """Whatever the nesting, types, order and other values are the same afterwards."""
    built = with_tensors(value)
    assert shape_of(built) == shape_of(move_to_device(built, META))
