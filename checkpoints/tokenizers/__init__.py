"""Tokenizers of both kinds of files, their vocabularies, and chat templates."""
