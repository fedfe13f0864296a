"""A network of torchvision, with the preprocessing that was published with its weights."""

import torch
import torchvision

import flatfold as ff

torch.manual_seed(0)
weights = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT
model = torchvision.models.mobilenet_v3_small()  # yours: mobilenet_v3_small(weights=weights)
held_out = torchvision.datasets.FakeData(200, (3, 256, 256), 1000)  # yours: ImageFolder("val")
photos = [image for image, _ in torchvision.datasets.FakeData(4, (3, 300, 400), random_offset=7)]

guard = ff.Guard.fit(model, held_out, loading=ff.Loading(transform=weights.transforms()))
verdict = guard(photos)  # images of PIL, prepared as in fit
for label, p, alarm in zip(verdict.predicted, verdict.p_value, verdict.is_ood, strict=True):
    print(f"{weights.meta['categories'][label]:20} p = {p:.2f} {'OOD' if alarm else 'ID'}")

guard.save("torchvision_guard.safetensors")
