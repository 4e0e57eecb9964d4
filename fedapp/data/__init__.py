"""Data sets, decoded once and shared by all processes, and their partitions."""

from fedapp.data.cache import ImageData, image_shape, load_images
from fedapp.data.facts import Facts
from fedapp.data.partitions import Partition, load_partition
from fedapp.data.shard import Shard, load_shard

__all__ = [
    "Facts",
    "ImageData",
    "Partition",
    "Shard",
    "image_shape",
    "load_images",
    "load_partition",
    "load_shard",
]
