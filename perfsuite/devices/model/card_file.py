"""Write a card's entry into the project's perfsuite-gpus.toml, beside what is there."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from perfsuite.devices.model.cards import PROJECT_FILE, Card
from perfsuite.errors import DeviceMissing


def render(card: Card) -> str:
    """Return a card as a table of a TOML file."""
    lines = [f"[{_key(card.name)}]"]
    tables: list[str] = []
    for item in fields(card):
        value = getattr(card, item.name)
        if item.name == "name" or value is None or value == item.default:
            continue
        if isinstance(value, dict):
            if value:
                tables.append(f"\n[{_key(card.name)}.{item.name}]")
                tables += [f"{_key(key)} = {_value(entry)}" for key, entry in sorted(value.items())]
        else:
            lines.append(f"{item.name} = {_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _key(text: str) -> str:
    return json.dumps(text)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    return (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, str)
        else f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
    )


def write(card: Card, root: Path) -> Path:
    """Append or replace a card in the project's file."""
    path = root / PROJECT_FILE
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        path.write_text(_without(text, card.name) + render(card), "utf-8")
    except OSError as error:
        raise DeviceMissing(f"{path} was not written: {error.strerror}") from None
    return path


def _without(text: str, name: str) -> str:
    """Return the file without an older entry of that name."""
    kept, is_old = [], False
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            head = line.strip().strip("[]").split(".")[0].strip('"')
            is_old = head == name
        if not is_old:
            kept.append(line)
    body = "".join(kept).rstrip("\n")
    return f"{body}\n\n" if body else ""
