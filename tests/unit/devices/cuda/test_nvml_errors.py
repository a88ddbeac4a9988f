"""The page of NVML's errors matches the code, and names every function the code calls."""

import re

from tests.nvml import error_table
from tests.nvml.standin import ROOT

NAMED = re.compile(r"""["'](nvml(?!Memory_v2)[A-Z]\w+)["']""")  # a version's number is no function


def test_the_page_shows_the_effect_of_every_error(library, tmp_path):
    """Every function failing with every code; the page is written by the same command."""
    assert (ROOT / "docs" / "nvml-errors.md").read_text() == error_table.page(library, tmp_path)


def test_the_page_names_every_function_that_is_called():
    """A new call of NVML needs a new row."""
    sources = [*(ROOT / "perfsuite" / "devices").rglob("*.py"), ROOT / "perfsuite/commands/doctor.py"]
    called = {name for path in sources for name in NAMED.findall(path.read_text())}
    assert {name.split()[0] for name in error_table.FUNCTIONS} == called
