"""What model families share: trunks, heads, chains of drafts, tables of files."""
