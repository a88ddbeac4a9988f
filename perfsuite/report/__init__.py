"""Render results as text, page and JSON; renderers only use the records."""
