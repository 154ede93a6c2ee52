"""CFSL tasks in a training loop of your own, with a PyTorch Dataset and DataLoader.

The tasks do not depend on the number of workers.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader

import cfsl
from cfsl.data.torch_dataset import TaskDataset


def main(updates=20, workers=2):
    data, spec = cfsl.load("glyphs-400x20"), cfsl.TaskSpec.type_b(nss=3)
    tasks = cfsl.Tasks(data, spec, split="train", numbers=range(4 * updates))
    loader = DataLoader(TaskDataset(tasks), batch_size=4, num_workers=workers)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    # A batch has 4 tasks: support_images is 4 x 3 x 5 x 1 x 28 x 28, target_images is
    # 4 x 75 x 1 x 28 x 28.
    for batch in loader:
        losses = []
        for i in range(len(batch["number"])):
            # In one-shot tasks, the image of a class is its prototype.
            prototypes = net(batch["support_images"][i].flatten(0, 1))
            order = batch["support_labels"][i].flatten().argsort()
            logits = -torch.cdist(net(batch["target_images"][i]), prototypes[order])
            losses.append(nn.functional.cross_entropy(logits, batch["target_labels"][i]))

        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    print(f"loss {loss.item():.3f} after {len(loader)} updates of 4 tasks")


if __name__ == "__main__":
    main()
