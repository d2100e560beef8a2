"""Zoo names of the models in public measurements; all importers use this table."""

from __future__ import annotations

ALIASES: dict[str, str] = {
    # Gavel (job_type without its batch size)
    "ResNet-18": "resnet18-cifar",
    "ResNet-50": "resnet50-imagenet",
    "Transformer": "transformer-multi30k",
    "LM": "lstm-wikitext2",
    "Recommendation": "autoencoder-ml20m",
    "A3C": "a3c-pong",
    "CycleGAN": "cyclegan-256",
    # Lucid (model; each has one data set)
    "ResNet18": "resnet18-cifar",
    "ResNet50": "resnet50-imagenet",
    "MobileNetV2": "mobilenetv2-cifar",
    "MobileNetV3": "mobilenetv3small-imagenet",
    "EfficientNet": "efficientnetb0-cifar",
    "VGG": "vgg11-cifar",
    "DCGAN": "dcgan-64",
    "LSTM": "lstm-wikitext2",
    "NeuMF": "neumf-ml1m",
    "PointNet": "pointnet-2500",
    "BERT": "bert-base-squad",
    "PPO": "ppo-lunarlander",
    "TD3": "td3-bipedalwalker",
    # Sia and Pollux
    "imagenet": "resnet50-imagenet",
    "cifar10": "resnet18-cifar",
    "bert": "bert-base-squad",
    "deepspeech2": "deepspeech2-librispeech",
    "yolov3": "yolov3-voc",
    "ncf": "neumf-ml1m",
    "gpt_pmp": "gpt-2.7b",
    # freezing data
    "bert-mlm-wikitext2": "bert-base-wikitext2",
    "cifar10-ResNet18": "resnet18-cifar",
    "cifar10-ResNet50": "resnet50-cifar",
    "cifar10-VGG19": "vgg19-cifar",
    "cifar10-GoogLeNet": "googlenet-cifar",
    "cifar10-MobileNetV2": "mobilenetv2-cifar",
    # Orion
    "orion/resnet50": "torchvision/resnet50",
    "orion/resnet101": "torchvision/resnet101",
    "orion/bert": "hf/bert-large",
    "orion/transformer_xl": "hf/transformer-xl",
    # NeuSight, end to end
    "neusight/bert_large": "hf/bert-large",
    "neusight/gpt2_large": "hf/gpt2-large",
    "neusight/switchxl4": "hf/switch-xl-4",
    # MISO
    "miso/resnet": "keras-resnet50-cifar",
    "miso/mobilenet": "keras-mobilenetv2-cifar",
    "miso/bert": "keras-bert-imdb",
    "miso/cyclegan": "keras-cyclegan-256",
    "miso/embedding": "keras-embedding-newsgroups",
    "miso/gnn": "keras-mpnn-bbbp",
    "miso/deepspeech2": "keras-deepspeech2-ljspeech",
    "miso/transformer": "keras-transformer-forda",
}
"""`ResNet-18` and `ResNet18` differ only in the punctuation of their sources."""
