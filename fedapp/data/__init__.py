"""Data sets, decoded once and shared by all processes, and their partitions."""

from fedapp.data.cache import ImageData, load_images
from fedapp.data.partitions import Partition, load_partition

__all__ = ["ImageData", "Partition", "load_images", "load_partition"]
