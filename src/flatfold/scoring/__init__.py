"""A model and a detector, joined: from an input to a decision."""
