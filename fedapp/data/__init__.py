"""Data sets, decoded once and shared by all processes, and their partitions."""

from fedapp.data.cache import ImageData, image_shape, load_images
from fedapp.data.facts import Facts
from fedapp.data.partitions import Partition, load_partition
from fedapp.data.shard import Shard, held_out_of, load_shard, without_samples

__all__ = [
    "Facts",
    "ImageData",
    "Partition",
    "Shard",
    "held_out_of",
    "image_shape",
    "load_images",
    "load_partition",
    "load_shard",
    "without_samples",
]
