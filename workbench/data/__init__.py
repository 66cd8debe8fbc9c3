"""Data for several ranks: which rank takes which sample, one copy in memory a host, and streams; three real data sets.

=====================  ==============================================================================
``ShardedSampler``     a rank's samples of an epoch, for a torch ``DataLoader``; with weights that make it exact
``mapped``             arrays that are in the memory of a host once
``prepared``           a file or folder that one rank of a host prepares
``TarShards``          samples that are streamed from a folder of tar files
``digits()``           1,440 + 357 images of 8 x 8, 10 classes; comes with this package
``shakespeare()``      401,592 bytes of plays, for a language model; comes with this package
``fashion_mnist()``    60,000 + 10,000 images of 28 x 28, 10 classes; cache folder, Debian package, download
=====================  ==============================================================================

Those of images are a :class:`Data`: four arrays and the names of the classes.
"""

from workbench.data.dataset import Data
from workbench.data.one_copy import mapped, prepared
from workbench.data.sampler import ShardedSampler
from workbench.data.shards import TarShards
from workbench.data.sources import digits, fashion_mnist, shakespeare

__all__ = ["Data", "ShardedSampler", "TarShards", "digits", "fashion_mnist", "mapped", "prepared", "shakespeare"]


def __dir__() -> list[str]:
    return sorted(__all__)
