"""Run a step on a device and return a reading; nothing is judged or printed here."""
