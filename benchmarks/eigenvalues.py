"""Eigenvalues of the feature Hessian from classes against the d x d matrices they avoid, and by iteration."""

import torch

from flatfold.core.eigenvalues import hessian_eigenvalues, largest_hessian_eigenvalue

from .ratio import report, time_ratio


def make_probs(n: int, c: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return class probabilities of random features, and the weights."""
    g = torch.Generator().manual_seed(0)
    h, weight = torch.randn(n, d, generator=g), torch.randn(c, d, generator=g) / d**0.5
    return (3 * h @ weight.T).softmax(-1), weight


def explicit(probs: torch.Tensor, weight: torch.Tensor, k: int) -> torch.Tensor:
    """Build (B, d, d) and take the largest of all its eigenvalues."""
    centred = (weight - (probs @ weight)[:, None]) * probs.sqrt()[:, :, None]
    return torch.linalg.eigvalsh(centred.mT @ centred).flip(-1)[:, :k]


def top() -> bool:
    """Take the 50 largest of 64 samples with 200 classes and 512 features; the reference gets 8 and is scaled up."""
    n, small, c, d, k = 64, 8, 200, 512, 50
    probs, weight = make_probs(n, c, d)

    def ratio() -> float:
        ours, theirs = (lambda: hessian_eigenvalues(probs, weight, k)), (lambda: explicit(probs[:small], weight, k))
        return time_ratio(ours, theirs, rounds=9) * n / small

    what = f"{k} largest eigenvalues against (B,d,d), B={n} C={c} d={d}, reference extrapolated from B={small}"
    threads = torch.get_num_threads()
    print(f"      {what}, {threads} threads: {ratio():.3g} times faster")
    torch.set_num_threads(1)  # a small matrix keeps one core busy, a large one several
    try:
        return report("the same on one thread each", ratio(), "times faster", 8)
    finally:
        torch.set_num_threads(threads)


def accuracy() -> bool:
    """Compare the largest eigenvalue at 1 - max p = 1e-10 in float32 with a sum over pairs of classes in float64."""
    n, c, d = 32, 10, 64
    others, weight = make_probs(n, c, d)
    winner = torch.arange(n) % c
    p = others.double().scatter(1, winner[:, None], 0.0)
    p = (1e-10 * p / p.sum(-1, keepdim=True)).scatter(1, winner[:, None], 1 - 1e-10)
    apart = weight.double()[:, None] - weight.double()
    truth = torch.linalg.eigvalsh(torch.einsum("ni,nj,ijd,ije->nde", p, p, apart, apart) / 2)[:, -1]
    p = p.float()
    ours = largest_hessian_eigenvalue(p, weight)
    textbook = weight.T @ (p.diag_embed() - p[:, :, None] * p[:, None]) @ weight
    for name, got in (("W'(diag p - pp')W", torch.linalg.eigvalsh(textbook)[:, -1]), ("ours", ours)):
        print(f"      {name}: median relative error {float(((got - truth) / truth).abs().median()):.2g} in float32")
    worst = float(((ours - truth) / truth).abs().max())
    return report("largest relative error of the largest eigenvalue, confident samples", worst, "", 1e-5, False)


def iteration() -> None:
    """Print what the iteration saves over all eigenvalues at the size of ImageNet-1K."""
    n, small, c, d = 64, 2, 1000, 2048
    probs, weight = make_probs(n, c, d)
    ratio = time_ratio(
        lambda: largest_hessian_eigenvalue(probs, weight),
        lambda: hessian_eigenvalues(probs[:small], weight, 1),
        rounds=3,
    )
    what = f"largest eigenvalue by iteration against all of (B,C,C), B={n} C={c} d={d}"
    print(f"      {what}, reference extrapolated from B={small}: {ratio * n / small:.3g} times faster")


def run() -> list[bool]:
    """Measure all three."""
    iteration()
    return [top(), accuracy()]
