"""Large networks, the vision transformer, and the weights it starts from."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedapp.errors import ConfigError
from fedapp.models.networks import layout_of, make_network
from fedapp.parsing import parse_run_config


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", "vgg11", "vgg19"])
def test_the_large_networks_learn_from_a_batch(model: str) -> None:
    network = make_network(model, (3, 32, 32), 10, "group", 0)
    generator_ = torch.Generator().manual_seed(0)
    images, labels = torch.randn(4, 3, 32, 32, generator=generator_), torch.arange(4)
    losses = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(network(images), labels)
        losses.append(float(loss.detach()))
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in network.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.001)
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_vit_base_is_torchvision_s(channels: int, tmp_path: Path) -> None:
    """From a file of its weights, and with another image size: the same representation."""
    from torchvision.models import vit_b_16
    from torchvision.models.vision_transformer import interpolate_embeddings

    torch.manual_seed(0)
    large = vit_b_16(weights=None, image_size=48)  # whose positions must be interpolated
    path = tmp_path / "vit.safetensors"
    save_file(large.state_dict(), path)
    reference = vit_b_16(weights=None, image_size=32).eval()
    reference.load_state_dict(interpolate_embeddings(32, 16, large.state_dict()))
    network = make_network("vit-base", (channels, 28, 28), 10, "batch", 0, 32, str(path)).eval()
    images = torch.randn(2, channels, 28, 28)
    resized = nn.functional.interpolate(images.expand(-1, 3, -1, -1), (32, 32), mode="bilinear")
    reference.heads = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(network.representation(images), reference(resized))
    layout = layout_of(network, "vit-base")
    assert len(layout.layers) == 13
    assert layout.head == 768 * 10 + 10
    network.train()(images).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_weights_that_cannot_be_fetched_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models.ViT_B_16_Weights.get_state_dict", unreachable)
    with pytest.raises(ConfigError, match=r"cannot be fetched .no route to host.: give the path"):
        make_network("vit-base", (3, 32, 32), 10, "batch", 0, 32, "imagenet")
    with pytest.raises(ConfigError, match="should be a full path"):
        parse_run_config({"vit.weights": "weights.pth"})


def test_weights_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    for name, said in (
        ("missing.pth", "is not there"),
        ("broken.pth", "cannot be read"),
        ("other.safetensors", "cannot be used"),
    ):
        with pytest.raises(ConfigError, match=said):
            make_network("vit-base", (3, 32, 32), 10, "batch", 0, 32, str(tmp_path / name))
    with pytest.raises(ConfigError, match="multiple of 16"):
        make_network("vit-base", (3, 32, 32), 10, "batch", 0, 40)
