"""Rows of a CSV file, one at a time, with every way a file can fail to be one told plainly."""

import csv
from collections.abc import Iterator
from pathlib import Path

from social_xlstm.errors import InputError


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each non-empty row; all are as long as the first, and there is one."""
    width = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True, skipinitialspace=True)
            for row in reader:
                if not any(row):
                    continue
                width = width or len(row)
                if len(row) != width:
                    raise InputError(
                        f"{path}: line {reader.line_num} has {len(row)} columns, the first row {width}; "
                        "give every row the same"
                    )
                yield reader.line_num, row
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as text ({error}); give a CSV file in UTF-8") from error
    except csv.Error as error:
        raise InputError(f"{path} is not CSV ({error}); separate columns by commas") from error
    if not width:
        raise InputError(f"{path} is empty; give a CSV file with rows")
