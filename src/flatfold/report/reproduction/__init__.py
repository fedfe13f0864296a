"""Every table and figure of the FOLD paper from one run, as a page: what the paper claims, what the run shows."""
