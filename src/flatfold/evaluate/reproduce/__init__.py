"""The whole paper on one suite: every table and figure from one run, and whether each agrees."""
