"""An image classifier of transformers on a Hugging Face data set, with its image processor."""

import datasets
import numpy as np
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

import flatfold as ff

torch.manual_seed(0)
sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
model = ViTForImageClassification(ViTConfig(num_labels=3, **sizes))  # yours: from_pretrained(name)
processor = ViTImageProcessor(size={"height": 32, "width": 32})  # yours: AutoImageProcessor.from_pretrained(name)

noise = np.random.default_rng(0).integers(0, 256, (204, 40, 40, 3), np.uint8)
rows = {"image": [Image.fromarray(pixels) for pixels in noise], "label": [row % 3 for row in range(204)]}
data = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())  # yours: load_dataset(name, split=...)

guard = ff.Guard.fit(model, data.select(range(4, 204)), loading=ff.Loading(transform=processor))
verdict = guard(processor([row["image"] for row in data.select(range(4))], return_tensors="pt"))
print(verdict.predicted, verdict.p_value, verdict.is_ood)
guard.save("image_guard.safetensors")
