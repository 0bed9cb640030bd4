"""Orbax folders of converted models, read and written."""
