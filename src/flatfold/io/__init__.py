"""Files, progress and everything that survives a crash."""
