"""Which of several processes this is."""

import pytest

from perfsuite.errors import RanksApart
from perfsuite.processes.world import ALONE, Place, without_ranks


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "0"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),  # torchrun with one process: no other ranks
        ({"RANK": "1", "WORLD_SIZE": "2"}, Place(1, 2, 1, 2)),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            Place(5, 8, 1, 4),
        ),
    ],
)
def test_torchruns_variables_are_read(environment, expected):
    """A process that runs alone has no place."""
    assert expected == Place.from_environment(environment)


@pytest.mark.parametrize("environment", [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}])
def test_an_impossible_place_is_refused(environment):
    """With the remedy."""
    with pytest.raises(RanksApart, match="start with torchrun"):
        Place.from_environment(environment)


def test_one_machine_or_several():
    """The first rank can start further ranks only if all run on one machine."""
    assert Place(0, 4, 0, 4).is_one_machine
    assert not Place(0, 4, 0, 2).is_one_machine


def test_a_ranks_child_is_no_rank():
    """Torchrun's variables are removed, the rest stays."""
    given = {"RANK": "0", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "PATH": "/bin"}
    assert {"PATH": "/bin"} == without_ranks(given)


def test_one_process_agrees_with_itself():
    """So that no caller has to check whether there are other ranks."""
    assert (3, True, [3]) == (ALONE.first(3), ALONE.any(True), ALONE.gather(3))
