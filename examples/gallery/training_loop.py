"""Your own training loop: keep some data for the guard, fit it after training, and look at every batch with it."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

import flatfold as ff

torch.manual_seed(0)
images, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
known = TensorDataset(images[digits < 6].float(), digits[digits < 6])  # yours: any data set
train, held_out, test = random_split(known, [0.5, 0.35, 0.15])
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 6))
optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
for _ in range(20):
    for x, y in DataLoader(train, batch_size=32, shuffle=True):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()

guard = ff.Guard.fit(model.eval(), DataLoader(held_out, batch_size=128), fpr=0.05)
guard.save("guard.safetensors")  # beside the checkpoint: it fits these weights only
monitor = guard.monitor()
for x in (*DataLoader(test, batch_size=32), (images[digits > 5].float(),)):
    verdict = guard(x[0])  # verdict.logits are those of the model
    monitor.add(verdict)
    print(f"{int(verdict.is_ood.sum())} of {len(x[0])} inputs raise an alarm")

print(monitor)
