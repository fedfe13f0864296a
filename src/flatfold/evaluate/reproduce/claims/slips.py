"""Averages of the paper that are not what they are said to be."""

from ...paper_tables.contradictions import contradictions


def slips(table: str) -> str:
    """Return every printed average of a table that its own parts contradict, with both numbers; nothing without any.

    Example:
        >>> slips("logit_vs_feature_hessian").partition(";")[0]
        'Logit, Average, auroc: 86.02 is printed, the mean of its parts is 86.06'
    """
    return "; ".join(str(each).removeprefix(f"{table}, ") for each in contradictions() if each.table == table)
