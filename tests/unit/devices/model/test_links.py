"""Several modelled cards: names, links, the ring's time, and buckets cut as torch cuts them."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed

from perfsuite.devices.model.cards import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Link,
    Ring,
    buckets,
    find_card,
    find_cards,
    link_of,
)
from perfsuite.errors import DeviceMissing

PLAIN = Link("pcie", 2e9, 0.5, 1e-3)  # 1 GB/s is reached


@pytest.mark.parametrize(
    ("count", "size_bytes", "expected"),
    [
        (1, 1e9, 0.0),
        (2, 0, 0.0),
        (2, 1e9, 1.0 + 2e-3),  # half of it there, half of it back: two hops
        (4, 1e9, 1.5 + 6e-3),  # six hops of a quarter each
        (4, 2e9, 3.0 + 6e-3),
    ],
)
def test_a_ring_sends_twice_what_the_others_have(count, size_bytes, expected):
    """2(k−1)/k of the bytes at the link's reached bandwidth, and 2(k−1) hops."""
    assert expected == pytest.approx(Ring(count, PLAIN).all_reduce_seconds(size_bytes))


@given(st.integers(2, 16), st.integers(0, 2**34), st.integers(0, 2**34), st.sampled_from(["nvlink", "pcie"]))
def test_more_bytes_are_never_faster_nor_are_more_cards(count, size, more, link):
    """Whatever the link."""
    chosen = link_of(find_card("h100"), link)
    ring = Ring(count, chosen)
    assert ring.all_reduce_seconds(size) <= ring.all_reduce_seconds(size + more)
    assert ring.all_reduce_seconds(size) <= Ring(count + 1, chosen).all_reduce_seconds(size)


@pytest.mark.parametrize(
    ("name", "count", "link", "bandwidth"),
    [
        ("4xa10", 4, "pcie", 31.5e9),
        ("4xa10@pcie", 4, "pcie", 31.5e9),
        ("8xh100", 8, "nvlink", 450e9),
        ("8xh100@pcie", 8, "pcie", 63e9),
        ("2xv100-sxm", 2, "nvlink", 150e9),
        ("16xa100-sxm@nvlink", 16, "nvlink", 300e9),
        ("2xa100-80", 2, "pcie", 31.5e9),
    ],
)
def test_cards_are_joined_by_nvlink_where_they_have_it(name, count, link, bandwidth):
    """Otherwise through the host; either can be requested by name."""
    _, ring = find_cards(name)
    assert (count, link, bandwidth) == (ring.count, ring.link.name, ring.link.bandwidth)


@pytest.mark.parametrize("name", ["a10", "1xa10"])
def test_one_card_has_no_ring(name):
    """And is the same card."""
    assert (find_card("a10"), None) == find_cards(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("4xa11", "unknown card 'a11'; known: a10, "),
        ("a11", "unknown card 'a11'; known: a10, "),
        ("-2xa10", "unknown card '-2xa10'; known: "),
        ("0xa10", "0 cards in model:0xa10 cannot be modelled; known: 1 to 16"),
        ("17xa10", "17 cards in model:17xa10 cannot be modelled; known: 1 to 16"),
        ("4xa10@ethernet", "unknown link 'ethernet' in model:4xa10@ethernet; known: nvlink, pcie"),
        ("4xa10@", "unknown link '' in model:4xa10@; known: nvlink, pcie"),
        ("a10@pcie", "is one card, a link joins several: model:2xa10@pcie"),
        ("4xa10@nvlink", "NVIDIA A10 has no NVLink; cards that have it: a100-sxm, h100, v100-sxm. Use @pcie"),
    ],
)
def test_what_is_unknown_is_refused_with_the_known(name, expected):
    """Card, link or count."""
    with pytest.raises(DeviceMissing) as refused:
        find_cards(name)
    assert expected in str(refused.value)


def test_a_processor_is_not_joined(tmp_path):
    """Calibrated as a card it has no link."""
    (tmp_path / "perfsuite-gpus.toml").write_text(
        '[mine]\ntitle = "Mine"\nfloat32 = 1e12\nbandwidth = 1e11\nsms = 1\nmemory_bytes = 1e9\n'
        'source = "here"\nis_host = true\n'
    )
    with pytest.raises(DeviceMissing, match="'mine' is a processor"):
        find_cards("2xmine", tmp_path)


def test_an_entry_may_override_its_link():
    """Both figures are in no sheet."""
    card = dataclasses.replace(find_card("a10"), link_share=0.3, link_seconds=1e-5)
    assert (0.3, 1e-5) == (link_of(card).share, link_of(card).hop_seconds)


@given(st.lists(st.integers(1, 40 * 2**20 // 4), max_size=30))
def test_buckets_are_cut_as_torch_cuts_them(numels):
    """The first at 1 MiB, the others at 25 MiB; compared with torch's function."""
    tensors = [torch.empty(numel, device="meta") for numel in numels]
    expected: list[list[int]] = []
    if tensors:
        expected, _ = distributed._compute_bucket_assignment_by_size(
            tensors, [FIRST_BUCKET_BYTES, BUCKET_BYTES], [False] * len(tensors), list(range(len(tensors)))
        )
    assert expected == [list(bucket) for bucket in buckets([4 * numel for numel in numels])]
    assert distributed._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET_BYTES
