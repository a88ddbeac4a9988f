"""The card that torch uses, and what the environment says about it."""

import pytest

from perfsuite.devices.cuda.identity import Visible, contradiction, nvml_uuids, order_text

BARE = "12345678-1234-1234-1234-123456789abc"


@pytest.mark.parametrize(
    ("text", "form", "entries"),
    [
        (None, "unset", ()),
        ("", "none", ()),
        ("-1", "none", ()),
        ("0", "indices", ("0",)),
        ("2,0", "indices", ("2", "0")),
        ("1, 0", "indices", ("1", "0")),
        ("0,-1,1", "indices", ("0",)),
        ("0,0", "none", ()),
        ("GPU-1234,GPU-5678", "uuids", ("GPU-1234", "GPU-5678")),
        ("GPU-1234,3", "uuids", ("GPU-1234",)),
        ("MIG-1234", "mig", ("MIG-1234",)),
        ("MIG-GPU-1234/7/0", "mig", ("MIG-GPU-1234/7/0",)),
        ("NoDevFiles", "wrong", ()),
    ],
)
def test_all_forms_of_the_variable(text, form, entries):
    """Numbers, UUIDs, slices, nothing: read as CUDA reads them, up to the first entry that does not fit."""
    environment = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert Visible(form, entries) == Visible.from_environment(environment)


@pytest.mark.parametrize(
    ("visible", "index", "expected"),
    [
        ("", 0, (f"GPU-{BARE}", f"MIG-{BARE}")),
        ("0,1", 1, (f"GPU-{BARE}", f"MIG-{BARE}")),
        ("MIG-a", 0, ("MIG-a", f"GPU-{BARE}", f"MIG-{BARE}")),
        ("MIG-GPU-a/7/0,MIG-b", 1, ("MIG-b", f"GPU-{BARE}", f"MIG-{BARE}")),
        ("MIG-a", 3, (f"GPU-{BARE}", f"MIG-{BARE}")),
    ],
)
def test_the_uuids_to_try(visible, index, expected):
    """The slice the environment names, then as a card, as a slice; never an index."""
    for bare in (BARE, f"GPU-{BARE}", f"MIG-{BARE}"):
        assert expected == nvml_uuids(bare, index, {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("visible", "is_noted"),
    [("GPU-1234", False), (f"GPU-{BARE}", False), ("GPU-9", True), ("7", False), ("MIG-9", False)],
)
def test_a_uuid_that_names_another_card_is_noted(visible, is_noted):
    """A UUID may be shortened; a number says nothing about which card it is."""
    assert is_noted is bool(contradiction(f"GPU-{BARE}", 0, {"CUDA_VISIBLE_DEVICES": visible}))


def test_the_order_of_cards_is_described():
    """CUDA's order and NVML's differ; neither is used."""
    assert "FASTEST_FIRST" in order_text({})
    text = order_text({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"})
    assert "CUDA sees 1; CUDA numbers them by PCI_BUS_ID" in text
    assert "'x' is neither a number nor a UUID" in order_text({"CUDA_VISIBLE_DEVICES": "x"})
