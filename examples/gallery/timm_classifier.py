"""A network of timm, with the preprocessing of its configuration, for images of any library."""

import numpy as np
import timm
import torch
from PIL import Image

import flatfold as ff

torch.manual_seed(0)
model = timm.create_model("resnet18", num_classes=5)  # yours: pretrained=True
config = timm.data.resolve_data_config(model=model)

noise = np.random.default_rng(0).integers(0, 256, (104, 64, 64, 3), np.uint8)
photos = [Image.fromarray(pixels) for pixels in noise]
held_out = [(photo, row % 5) for row, photo in enumerate(photos[4:])]  # yours: any data set, or a folder

guard = ff.Guard.fit(model, held_out, fpr=0.1, loading=ff.Loading(transform=config))
for explanation in guard.explain(photos[:4]):
    print(explanation)

guard.save("timm_guard.safetensors")
