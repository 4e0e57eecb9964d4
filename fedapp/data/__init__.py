"""Data sets, decoded once and shared by all processes, and their partitions."""

from fedapp.data.arrays import ArrayData, Decoder, load_arrays
from fedapp.data.cache import ImageData, image_shape, load_images
from fedapp.data.facts import Facts
from fedapp.data.given_images import configured_images
from fedapp.data.partitions import Divisible, Partition, load_partition
from fedapp.data.shard import Shard, load_shard

__all__ = [
    "ArrayData",
    "Decoder",
    "Divisible",
    "Facts",
    "ImageData",
    "Partition",
    "Shard",
    "configured_images",
    "image_shape",
    "load_arrays",
    "load_images",
    "load_partition",
    "load_shard",
]
