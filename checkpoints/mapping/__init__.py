"""Rules that pair the tensors of a file with the parameters of a model."""
