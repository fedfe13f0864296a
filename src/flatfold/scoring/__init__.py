"""Guards: join a model and a detector to turn inputs into decisions."""
