"""Turn the expectations of a test into limits, before anything is measured."""
