"""The networks of the ``digits`` suite: three ways to see handwriting, each small enough to be trained on one core."""

from collections.abc import Callable

from torch import Tensor, nn


class DigitNet(nn.Module):
    """The customary small network for handwritten digits: two convolutions, a hidden layer of 128, a linear head."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(64 * 7 * 7, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        self.head = nn.Linear(128, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, c)`` of images ``(n, 1, 28, 28)``."""
        logits: Tensor = self.head(self.body(x))
        return logits


class DigitMlp(nn.Module):
    """Two hidden layers of 256 and 128 that see an image as a row of pixels, and a linear head."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(28 * 28, 256),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Dropout(0.2),
        )
        self.head = nn.Linear(128, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, c)`` of images ``(n, 1, 28, 28)``."""
        logits: Tensor = self.head(self.body(x))
        return logits


class ResidualBlock(nn.Module):
    """Two convolutions with batch normalisation at half the size, added to what came in, and a ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))
        self.end = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return maps ``(n, outputs, height / 2, width / 2)``."""
        maps: Tensor = self.end(self.change(x) + self.shortcut(x))
        return maps


class DigitResidual(nn.Module):
    """A convolution, two residual blocks, the mean of each of 64 maps, and a linear head."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            ResidualBlock(16, 32),
            ResidualBlock(32, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(64, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, c)`` of images ``(n, 1, 28, 28)``."""
        logits: Tensor = self.head(self.body(x))
        return logits


FIRST = "cnn"  # which is taken where nobody asks for another
DIGIT_NETWORKS: dict[str, Callable[[int], nn.Module]] = {FIRST: DigitNet, "mlp": DigitMlp, "residual": DigitResidual}
