"""The exceptions a caller may want to catch by name.

::

    ValueError
     +-- UnsupportedHead    the model has no affine last layer that can be found
     +-- DamagedBank        a bank on disk is incomplete or its bytes have changed
     +-- UnreadableImage    a file is no image, or only part of one
          +-- TooManyPixels  or says that it is larger than what is read
    RuntimeError
     +-- NotFittedError     a detector was called before ``fit``

Everything else is a plain ``ValueError`` or ``TypeError`` whose message says what was needed, what came and what to
try.
"""


class NotFittedError(RuntimeError):
    """A detector was asked for scores before it was fitted."""


class UnsupportedHead(ValueError):  # noqa: N818 - named for what it says, as in `except UnsupportedHead`
    """The model's logits do not come from one linear layer that flatfold can find."""


class DamagedBank(ValueError):  # noqa: N818
    """A bank on disk is incomplete, or its bytes are not those that were written."""


class UnreadableImage(ValueError):  # noqa: N818
    """A file could not be decoded as an image."""


class TooManyPixels(UnreadableImage):
    """An image declares more pixels than are read; it was not decoded."""
