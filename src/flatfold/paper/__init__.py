"""The paper's experiments, tables, claims and theorem: what `flatfold reproduce` and `flatfold paper` run."""
