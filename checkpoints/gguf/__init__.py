"""The GGUF container: reading, writing, and the types of its tensors."""
