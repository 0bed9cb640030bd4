"""Conversations as values: turns that reuse caches, context shift, saved files."""
