"""The commands of `python -m perfsuite`."""
