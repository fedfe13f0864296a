"""Tensors in, tensors out: the mathematics, free of models, files and devices."""
