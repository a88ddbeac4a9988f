"""Turn results into text; every renderer knows only the record."""
