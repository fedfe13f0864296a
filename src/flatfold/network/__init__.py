"""Run models: find the head, choose a runtime, hash weights, and build networks by name."""
