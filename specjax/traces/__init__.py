"""What drafting did, round by round, as arrays."""
