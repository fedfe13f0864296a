"""Invented measurements, whose regrets and gains can be told by hand."""

import numpy as np

from studies.autofold.families import ALPHAS
from studies.autofold.measure import ORACLES, REFERENCES, Measured
from studies.autofold.results import Found
from studies.autofold.rules import RULES

METHODS = [*RULES, *REFERENCES, *ORACLES]


def invented(gains, role="development", name="net", replicates=4, spread=0.0, regret=0.01):
    """Return a network on which `paired` has an AUROC of 0.9 and other methods are ahead of it by ``gains``.

    Args:
        gains: By method; 0 where there is none.
        role: Of the network.
        name: Of the network.
        replicates: Of the bootstrap.
        spread: Added to and taken from the gains in turns.
        regret: Of `paired`.
    """
    ahead = np.array([{"oracle": regret, **gains}.get(method, 0.0) for method in METHODS])
    turns = np.array([0.0, *(spread * (-1) ** b for b in range(replicates))])
    redrawn = 0.9 + ahead[:, None] + np.where(ahead[:, None] != 0, turns, 0.0)
    redrawn = np.repeat(redrawn[:, :, None], 2, axis=2)
    alphas = np.full_like(redrawn, 0.5)
    alphas[len(RULES) : -len(ORACLES)] = np.nan
    flat = np.zeros(len(ALPHAS))
    measured = Measured(
        METHODS,
        ["far", "mean"],
        alphas,
        redrawn - 0.1,
        redrawn,
        np.stack([flat, flat], axis=1),
        np.stack([flat, flat]),
        np.asarray(0.8),
    )
    return Found("suite", name, role, measured)
