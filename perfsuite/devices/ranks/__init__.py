"""Ranks: several processes that measure together."""
