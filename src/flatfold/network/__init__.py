"""A model as flatfold runs it: its head, runtimes, hashes, and networks by name."""
