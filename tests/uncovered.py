"""The environment of a process that is not measured."""

import os


def environment(**more):
    """Return the variables of this process without those by which coverage follows it, and some more.

    Coverage holds a lock while it looks at a call. An interrupt that comes just then leaves it locked, and the process
    waits for ever; and where no file can grow it cannot write what it saw. Such processes are not measured.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")} | more
