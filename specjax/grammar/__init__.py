"""Structured output: JSON schemas and regular expressions, compiled to tables of tokens."""
