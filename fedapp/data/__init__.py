"""Data sets, decoded once and shared by all processes, and their partitions."""

from fedapp.data.arrays import ArrayData, Decoder, load_arrays
from fedapp.data.cache import ImageData, image_shape, load_images
from fedapp.data.dividing import Divisible, Partition
from fedapp.data.facts import Facts
from fedapp.data.given_images import configured_images
from fedapp.data.partitions import Divided, load_partition, validation_rows
from fedapp.data.shard import Shard, held_out_of, load_shard, without_samples

__all__ = [
    "ArrayData",
    "Decoder",
    "Divided",
    "Divisible",
    "Facts",
    "ImageData",
    "Partition",
    "Shard",
    "configured_images",
    "held_out_of",
    "image_shape",
    "load_arrays",
    "load_images",
    "load_partition",
    "load_shard",
    "validation_rows",
    "without_samples",
]
