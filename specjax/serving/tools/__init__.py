"""Calls of functions in what a model says: each family writes them in a form of its own."""
