"""What several tests share: a small world of features, and hypothesis without a clock."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings

from flatfold import FeatureBank, Head

settings.register_profile("flatfold", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("flatfold")


@dataclass(frozen=True)
class World:
    """Six classes with four dimensions each: known features are large in their own, unknown ones are noise alone."""

    head: Head
    bank: FeatureBank
    unknown: torch.Tensor

    @classmethod
    def make(cls, dtype=torch.float32, per_class=60, seed=0, bias=True):
        g = torch.Generator().manual_seed(seed)
        own = torch.eye(6, dtype=torch.float64).repeat_interleave(4, dim=1)
        weight = own + 0.1 * torch.randn(6, 24, generator=g, dtype=torch.float64)
        labels = torch.arange(6).repeat(per_class)
        features = (3 * own[labels] + 0.8 * torch.randn(len(labels), 24, generator=g, dtype=torch.float64)).relu()
        unknown = (0.8 * torch.randn(100, 24, generator=g, dtype=torch.float64)).relu()
        offset = 0.1 * torch.randn(6, generator=g, dtype=torch.float64) if bias else None
        head = Head(weight.to(dtype), None if offset is None else offset.to(dtype))
        return cls(head, FeatureBank(features.to(dtype), labels), unknown.to(dtype))


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def world(request):
    return World.make(request.param)


@pytest.fixture
def make_world():
    return World.make
