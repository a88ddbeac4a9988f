"""Read what a shared library needs of others: names, versions, files; as much of ELF as that takes."""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DYNAMIC, _DYNSYM, _VERSYM, _VERNEED = 6, 11, 0x6FFFFFFF, 0x6FFFFFFE  # kinds of sections
_NEEDED = 1  # the tag of a library's name in the dynamic section
_FUNCTION, _UNTYPED = 2, 0
_VERSION_MASK = 0x7FFF


class NotElf(Exception):
    """The file is no 64-bit little-endian shared library."""


@dataclass(frozen=True)
class Needs:
    """What one library needs of others: their names, and undefined symbols with the version they carry."""

    libraries: tuple[str, ...]
    symbols: dict[str, tuple[str, str]]  # symbol → (library, version), both "" where it names none


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def read_needs(path: Path) -> Needs:
    """Return what the library at this path needs."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise NotElf(f"{path} is no 64-bit ELF file")
        return _Reader(data).needs()


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        self._sections = [self._section(start + number * size) for number in range(count)]

    def _section(self, at: int) -> _Section:
        _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", self._data, at)
        return _Section(kind, offset, size, link)

    def _of_kind(self, kind: int) -> _Section | None:
        return next((section for section in self._sections if section.kind == kind), None)

    def _text(self, names: _Section, offset: int) -> str:
        begin = names.offset + offset
        return self._data[begin : self._data.find(b"\0", begin)].decode()

    def needs(self) -> Needs:
        return Needs(tuple(self._libraries()), dict(self._symbols()))

    def _libraries(self) -> Iterator[str]:
        dynamic = self._of_kind(_DYNAMIC)
        if dynamic is None:
            return
        names = self._sections[dynamic.link]
        for at in range(dynamic.offset, dynamic.offset + dynamic.size, 16):
            tag, value = struct.unpack_from("<QQ", self._data, at)
            if tag == _NEEDED:
                yield self._text(names, value)

    def _symbols(self) -> Iterator[tuple[str, tuple[str, str]]]:
        symbols = self._of_kind(_DYNSYM)
        if symbols is None:
            return
        names, versions = self._sections[symbols.link], self._versions()
        marks = self._of_kind(_VERSYM)
        for number in range(symbols.size // 24):
            name, kind, _, section = struct.unpack_from("<IBBH", self._data, symbols.offset + 24 * number)
            if section or not name or kind & 0xF not in (_FUNCTION, _UNTYPED):
                continue
            mark = 0
            if marks is not None:
                (mark,) = struct.unpack_from("<H", self._data, marks.offset + 2 * number)
            yield self._text(names, name), versions.get(mark & _VERSION_MASK, ("", ""))

    def _versions(self) -> dict[int, tuple[str, str]]:
        """Return the library and version each mark stands for."""
        found: dict[int, tuple[str, str]] = {}
        section = self._of_kind(_VERNEED)
        if section is None or not section.size:
            return found
        names, at = self._sections[section.link], section.offset
        while True:
            _, count, file, first, following = struct.unpack_from("<HHIII", self._data, at)
            entry = at + first
            for _ in range(count):
                _, _, mark, name, later = struct.unpack_from("<IHHII", self._data, entry)
                found[mark] = (self._text(names, file), self._text(names, name))
                entry += later
            if not following:
                return found
            at += following
