"""Questions about the methods, answered by measuring; each study is a package that can be run with ``python -m``."""
