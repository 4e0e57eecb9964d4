"""The config keys of the networks."""

from pydantic import Field, field_validator

from fedapp.tables import Table, full_path


class VitKeys(Table):
    """The model vit-base."""

    image_size: int = Field(
        224, ge=16, description='side, a multiple of 16, to which model = "vit-base" resizes images'
    )
    weights: str = Field(
        "",
        description='where it starts: a file (.safetensors or .pth) of torchvision\'s vit_b_16, "imagenet" (fetched), or empty: random',
    )

    @field_validator("weights")
    @classmethod
    def _is_full_path(cls, path: str) -> str:
        return path if path == "imagenet" else str(full_path(path))
