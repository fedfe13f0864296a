"""Rules are chosen on some networks and judged on others, so that a lucky one is found out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .resampled import Vector
from .results import REFERENCE, Found, with_interval
from .rules import RULES

LIMIT = 5.0  # percentage points: where a network is lost without a rule, its gain must not decide alone


@dataclass(frozen=True)
class Verdict:
    """A rule that was chosen on some networks, and what it gained over ``paired`` on others, in percentage points.

    Attributes:
        chosen_on, judged_on: Which networks.
        group: Of rules, among which it was the best.
        rule: Its name.
        again: Share of replicates in which it is the best of its group once more; all images redrawn.
        choice: Mean gain where it was chosen, every network's held within ``LIMIT``.
        choice_low: Lower end of the mean gain where it was chosen, without that limit; all images and networks redrawn.
        gain, low, high: Mean gain where it is judged; all images redrawn.
        wide_low, wide_high: Networks redrawn too.
        worst: The gain on the network where it is least.
    """

    chosen_on: str
    judged_on: str
    group: str
    rule: str
    again: float
    choice: float
    choice_low: float
    gain: float
    low: float
    high: float
    wide_low: float
    wide_high: float
    worst: float

    @property
    def kept(self) -> bool:
        """Tell whether the gain is certain, as far as these networks go."""
        return self.low > 0 and self.wide_low > 0

    @property
    def confirmed(self) -> bool:
        """Tell whether it is certain where the rule was chosen, too."""
        return self.kept and self.choice_low > 0


def limited_gains(found: Sequence[Found], rule: str, limit: float = LIMIT) -> Vector:
    """Return the mean gain of a rule in every replicate, ``(b,)``, every network's held within ``limit``."""
    mean: Vector = np.mean([np.clip(each.gain(rule), -limit, limit) for each in found], axis=0)
    return mean


def best_rules(found: Sequence[Found], group: str, limit: float = LIMIT) -> list[str]:
    """Return the rule of a group with the largest limited gain in every replicate, the first of equals.

    The first entry is what is chosen; the others tell what would have been with other images. No rule is an
    afterthought.
    """
    names = [
        name for name, rule in RULES.items() if rule.group == group and name != REFERENCE and not rule.afterthought
    ]
    best = np.argmax([limited_gains(found, name, limit) for name in names], axis=0)
    return [names[index] for index in best]


def mean_gain(found: Sequence[Found], rule: str) -> Vector:
    """Return the mean gain over networks in every replicate, ``(b,)``."""
    mean: Vector = np.mean([each.gain(rule) for each in found], axis=0)
    return mean


def redrawn_networks(found: Sequence[Found], rule: str, seed: int = 0) -> Vector:
    """Return the mean gain in every replicate, each over networks drawn with replacement; replicate 0 has them all."""
    gains = np.stack([each.gain(rule) for each in found])
    drawn = np.random.default_rng(seed).integers(len(found), size=gains.shape)
    drawn[:, 0] = np.arange(len(found))
    mean: Vector = np.take_along_axis(gains, drawn, axis=0).mean(axis=0)
    return mean


def judge(chosen_on: Sequence[Found], judged_on: Sequence[Found], group: str) -> Verdict:
    """Choose the best rule of a group on some networks and judge it on others."""
    rule, *redrawn = best_rules(chosen_on, group)
    gain, low, high = with_interval(mean_gain(judged_on, rule))
    _, wide_low, wide_high = with_interval(redrawn_networks(judged_on, rule))
    worst = min(float(each.gain(rule)[0]) for each in judged_on)
    _, choice_low, _ = with_interval(redrawn_networks(chosen_on, rule))
    return Verdict(
        *(chosen_on[0].role, judged_on[0].role, group, rule),
        *(
            redrawn.count(rule) / len(redrawn),
            float(limited_gains(chosen_on, rule)[0]),
            choice_low,
            gain,
            low,
            high,
            wide_low,
            wide_high,
            round(worst, 4),
        ),
    )


def verdicts(found: Sequence[Found]) -> list[Verdict]:
    """Return the best rule of every group, chosen on development networks and judged on the others, and vice versa.

    Where all networks have one role there is nothing to judge on.
    """
    sides = [[each for each in found if each.role == role] for role in ("development", "held out")]
    if not all(sides):
        return []
    groups = dict.fromkeys(rule.group for rule in RULES.values())
    return [judge(here, there, group) for here, there in (sides, sides[::-1]) for group in groups]
