"""Drafters for targets of any family."""
