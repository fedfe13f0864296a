"""Mathematics on tensors, independent of models, files and devices."""
