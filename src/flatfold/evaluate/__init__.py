"""From a model and data sets to rows of a table: suites, the protocol, the runner, result files."""
