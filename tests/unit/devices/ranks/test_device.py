"""The device of all ranks: what one rank's device says of itself holds for the set."""

from types import SimpleNamespace

from perfsuite.devices.protocol import Device
from perfsuite.devices.ranks.device import RankedDevice


def test_every_flag_of_a_device_is_that_of_its_ranks():
    """A flag that is forgotten would take its default, and an emulated rank's times would be compared."""
    before_joining = ("name", "is_one_process", "collectives")  # which nobody asks for once ranks have met
    flags = [flag for flag in Device.__annotations__ if flag not in before_joining]
    assert "compares_times" in flags
    one = SimpleNamespace(name="cuda:1", **{flag: object() for flag in flags})
    ranked = RankedDevice(one, SimpleNamespace(size=2))
    assert [getattr(one, flag) for flag in flags] == [getattr(ranked, flag) for flag in flags]
    assert "cuda×2" == ranked.name
