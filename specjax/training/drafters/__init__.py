"""Training of drafters that read the features of a target, which stands still."""
