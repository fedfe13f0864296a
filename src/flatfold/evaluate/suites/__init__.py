"""Suites: networks and the data sets they are evaluated on, built in or from files."""
