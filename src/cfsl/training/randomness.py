"""The random numbers of training: a function of seed, purpose and number of the update.

So a run that goes on needs no generator that was saved.
"""

from __future__ import annotations

import numpy as np
import torch

from cfsl.sampling.philox import Stream
from cfsl.training.training_spec import Training


def generator_of_update(training: Training, purpose: str, update: int) -> torch.Generator:
    """Return the generator of one update for one purpose."""
    zero = np.zeros(1, np.uint64)
    stream = Stream.named("training", training.seed, purpose)
    words = stream.words(np.array([update], np.uint64), zero, 2)[:, 0]
    return torch.Generator().manual_seed(int(words[0]) << 31 ^ int(words[1]))
