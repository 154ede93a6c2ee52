"""Tasks as a PyTorch `Dataset`: dicts of tensors, which a `DataLoader` can stack."""

from __future__ import annotations

from torch import Tensor
from torch.utils.data import Dataset

from cfsl.data.tasks import Tasks


class TaskDataset(Dataset[dict[str, Tensor]]):
    """A map-style data set whose items are tasks.

    Item i is ``tasks[i]`` as a dict: ``support_images`` (sets x images x channels x height x
    width), ``support_labels`` (sets x images), ``target_images``, ``target_labels``,
    ``target_groups`` and ``number``. All tasks of a spec have the same shapes, so PyTorch's own
    collate function makes batches of them. The tasks do not depend on the number of loading
    processes: nothing is drawn from their generators.

    It is for training loops of your own. To evaluate a learner, use `cfsl.evaluate`, which shows it
    one support set at a time; here all of a task can be seen at once.
    """

    def __init__(self, tasks: Tasks) -> None:
        """Take the tasks that are to be the items."""
        self.tasks = tasks

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return the task at a position; its tensors share no memory with those of other tasks."""
        number = self.tasks.numbers[index]
        batch = next(self.tasks[index : index + 1 or None].batches(1))

        return {
            "number": batch.target_labels.new_tensor(number),
            "support_images": batch.support_images[0],
            "support_labels": batch.support_labels[0],
            "target_images": batch.target_images[0],
            "target_labels": batch.target_labels[0],
            "target_groups": batch.target_groups[0],
        }
