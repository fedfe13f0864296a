"""A data set through a network, in parts."""
