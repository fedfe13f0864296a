"""Networks small enough for a dense Hessian, and that Hessian in float64."""

import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev


class Net(nn.Module):
    """A network from its layers, and parameters, and a function of itself and its input."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


class Residual(nn.Module):
    """Convolutions with batch normalisation beside a shortcut, as in a ResNet."""

    def __init__(self, classes=3):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.linear = nn.Linear(3, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.linear(torch.relu(x + self.bn2(self.conv2(x))).mean(dim=(2, 3)))


def relu_cnn(classes=4):
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 4, classes)
    )


def tanh_cnn(classes=4):
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 4, classes))


NETWORKS = {"relu": relu_cnn, "tanh": tanh_cnn, "batch norm": Residual}


def make(name, seed=0, dtype=torch.float64):
    """Return a network in evaluation mode, with running statistics that are not trivial."""
    torch.manual_seed(seed)
    model = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return model.eval().to(dtype)


def images(n=6, seed=1, dtype=torch.float64):
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def loss_of(logits, loss, labels=None):
    """Return the losses of rows of logits, written out."""
    energy = torch.log(torch.exp(logits).sum(-1))
    if loss == "energy":
        return energy
    target = logits.argmax(-1) if loss == "ce_pred" else labels
    return energy - logits[torch.arange(len(logits)), target]


def flat(model):
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _matrix(blocks, parameters):
    rows = [
        torch.cat([blocks[a][b].reshape(one.numel(), other.numel()) for b, other in parameters.items()], dim=1)
        for a, one in parameters.items()
    ]
    return torch.cat(rows)


def dense_hessian(model, x, loss="energy", labels=None):
    """Return the Hessian of the mean loss, ``(size, size)``."""
    parameters = flat(model)
    blocks = hessian(lambda values: loss_of(functional_call(model, values, (x,)), loss, labels).mean())(parameters)
    return _matrix(blocks, parameters)


def row_by_row_hessian(model, x, loss="energy"):
    """Return the same, one row after the other.

    In torch 2.13 ``torch.func.hessian`` has wrong rows for the weights of a layer normalisation inside of a network.
    """
    parameters = list(model.parameters())
    slopes = torch.autograd.grad(loss_of(model(x), loss).mean(), parameters, create_graph=True)
    entries = torch.cat([slope.flatten() for slope in slopes])
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True) for entry in entries]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def dense_ggn(model, x):
    """Return the Gauss-Newton matrix of the mean loss, ``(size, size)``."""
    parameters = flat(model)
    slopes = jacrev(lambda values: functional_call(model, values, (x,)))(parameters)
    jacobian = torch.cat([slope.reshape(*slope.shape[:2], -1) for slope in slopes.values()], dim=-1)
    probs = model(x).detach().softmax(-1)
    inner = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    return torch.einsum("ncp,ncd,ndq->pq", jacobian, inner, jacobian) / len(x)


def dense_matrix(matrix, model, x, loss="energy", labels=None):
    return dense_ggn(model, x) if matrix == "ggn" else dense_hessian(model, x, loss, labels)
