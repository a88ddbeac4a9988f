"""`python -m perfsuite explain`: every cause a failure can name has its section, wherever it is installed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perfsuite.commands import parser
from perfsuite.commands.parser import main
from perfsuite.diagnose import diagnosis
from perfsuite.errors import PerfsuiteError

ROOT = Path(__file__).parents[3]


def causes():
    """Return the names that rules give their causes."""
    folder = Path(diagnosis.__file__).parent
    found = [re.findall(r'Cause\(\s*"([a-z-]+)"', path.read_text()) for path in folder.glob("*.py")]
    return sorted({name for names in found for name in names})


@pytest.mark.parametrize("cause", causes())
def test_every_cause_has_a_section(cause):
    """The one a message points to."""
    assert parser.explain(cause).startswith(f"### {cause}\n")


@pytest.mark.parametrize("topic", parser._ELSEWHERE)
def test_topics_of_other_documents_are_found(topic):
    """By the title of their section."""
    assert len(parser.explain(topic).splitlines()) > 3


def test_an_unknown_topic_is_refused_with_the_known_ones(capsys):
    """And the command says so without a traceback."""
    with pytest.raises(PerfsuiteError, match="nothing about 'slow'; known: data-bound"):
        parser.explain("slow")
    assert 1 == main(["explain", "slow"])
    assert "known: data-bound" in capsys.readouterr().err


def test_a_wheel_carries_the_documents():
    """All that the command reads."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    carried = build["targets"]["wheel"]["force-include"]
    for name in {"diagnosis.md", *(name for name, _ in parser._ELSEWHERE.values())}:
        assert f"perfsuite/documents/{name}" == carried[f"docs/{name}"]


def test_a_reader_who_has_seen_enough_is_no_error():
    """`python -m perfsuite explain data-bound | head -1`."""
    command = [sys.executable, "-m", "perfsuite", "schema", "baseline"]  # more than a pipe holds back
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        ran.stdout.close()
        assert b"" == ran.stderr.read()
    assert 0 == ran.returncode
