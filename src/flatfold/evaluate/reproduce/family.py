"""Which methods are the paper's own."""


def in_family(method: str) -> bool:
    """Return whether a method, by its name or its label in tables, is FOLD, AutoFold or one of their variants.

    Example:
        >>> in_family("autofold-r"), in_family("fold@ood"), in_family("knn")
        (True, True, False)
    """
    return method.removeprefix("auto").startswith("fold")
