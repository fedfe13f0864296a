"""The ``nn.Module`` side: find the head of a model, extract features once, read images, keep banks on disk."""
