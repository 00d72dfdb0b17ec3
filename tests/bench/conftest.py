"""Torch's thread pools fight each other, and the other test workers, over the few cores of CI: one thread each."""

import torch

torch.set_num_threads(1)
