"""``python -m flatfold`` is the same program as ``flatfold``."""

from .cli import main

main()
