"""ResNets in PyTorch with torchvision's names of parameters; shared by the peers.

    model = resnet("resnet20", classes=10).to(memory_format=torch.channels_last)
"""
import torch
from torch import nn
from torch.nn import functional as F

# name -> (blocks of each stage, width of the first stage, bottleneck)
PRESETS = {
    "resnet20": ([3, 3, 3], 16, False),
    "resnet32": ([5, 5, 5], 16, False),
    "resnet56": ([9, 9, 9], 16, False),
    "resnet18": ([2, 2, 2, 2], 64, False),
    "resnet34": ([3, 4, 6, 3], 64, False),
    "resnet50": ([3, 4, 6, 3], 64, True),
}


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            layers = [conv(inputs, width, 1), conv(width, width, 3, stride),
                      conv(width, outputs, 1)]
        else:
            layers = [conv(inputs, width, 3, stride), conv(width, width, 3)]
        for i, layer in enumerate(layers, 1):
            setattr(self, f"conv{i}", layer)
            setattr(self, f"bn{i}", nn.BatchNorm2d(layer.out_channels))
        self.depth = len(layers)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.depth:
                y = F.relu(y, inplace=True)
        y += self.downsample(x) if self.downsample else x
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, blocks, width, bottleneck, small_images, channels, classes):
        super().__init__()
        self.conv1 = conv(channels, width, 3) if small_images else conv(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.small_images = small_images
        inputs = width
        for stage, count in enumerate(blocks):
            layers = []
            for i in range(count):
                stride = 2 if i == 0 and stage > 0 else 1
                layers.append(Block(inputs, width << stage, stride, bottleneck))
                inputs = (width << stage) * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(blocks)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if not self.small_images:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet(name, classes=10, channels=3, small_images=None):
    blocks, width, bottleneck = PRESETS[name]
    small = width == 16 if small_images is None else small_images
    return ResNet(blocks, width, bottleneck, small, channels, classes)


def sgd(model, lr, momentum=0.9, weight_decay=5e-4):
    """Nesterov SGD; weight decay applies to filters and matrices, not to biases and norms."""
    parameters = list(model.parameters())
    return torch.optim.SGD(
        [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
         {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}],
        lr=lr, momentum=momentum, nesterov=True)
