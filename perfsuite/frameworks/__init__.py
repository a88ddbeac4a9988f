"""Callbacks for the trainers of other frameworks; each module needs its framework only when imported."""
