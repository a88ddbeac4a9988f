"""The one error for input that cannot be used."""


class InputError(ValueError):
    """Say which input is wrong, why, and what to do about it."""
