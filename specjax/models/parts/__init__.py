"""What model families share: trunks, heads, chains of drafts, shapes of parameters, names in files."""
