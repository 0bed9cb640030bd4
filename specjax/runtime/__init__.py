"""Running models: loading, placement, batches and what a user types against."""
