"""Measure two versions of a project in turns and compare them."""
