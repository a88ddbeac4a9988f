"""Print what the documents say about a cause or an outcome; they are installed with the plugin."""

import re
from pathlib import Path

from perfsuite.errors import PerfsuiteError

_INSTALLED = Path(__file__).parents[1] / "documents"  # where a wheel has the documents
_IN_REPOSITORY = Path(__file__).parents[2] / "docs"
# What is no cause of its own has its section elsewhere.
_ELSEWHERE = {
    "invalid": ("gpu-runners.md", "What makes a measurement invalid"),
    "crowded": ("verdicts.md", "A CPU that others use too"),
    "baseline": ("verdicts.md", "A stored baseline"),
    "against": ("verdicts.md", "Against a git ref"),
}


def explain(topic: str) -> str:
    """Return the section about a topic, or say which there are."""
    causes = _sections("diagnosis.md", "###")
    if topic in _ELSEWHERE:
        name, title = _ELSEWHERE[topic]
        return _sections(name, "##")[title]
    if topic not in causes:
        known = ", ".join([*causes, *_ELSEWHERE])
        raise PerfsuiteError(f"there is nothing about {topic!r}; known: {known}")
    return causes[topic]


def _sections(name: str, level: str) -> dict[str, str]:
    """Return a document's sections by their titles."""
    text = _document(name)
    parts = re.split(rf"^(?=#{{2,{len(level)}}} )", text, flags=re.MULTILINE)
    return {part.splitlines()[0].lstrip("# "): part.strip() for part in parts if part.startswith(f"{level} ")}


def _document(name: str) -> str:
    for folder in (_INSTALLED, _IN_REPOSITORY):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise PerfsuiteError(f"{name} was not installed with perfsuite; install it again")
