"""The zoo's models of images, and of images and text."""

from __future__ import annotations

import functools

from torch import nn
from zoo_batches import WORDS, growing, images, many, masks, scenes, small, videos, with_images
from zoo_building import IMAGE, PYRAMID, SHAPE, built, maker, settings
from zoo_conformance import Case

_image = functools.partial(maker, **IMAGE)


def clip() -> nn.Module:
    text = {**SHAPE, "vocab_size": WORDS, "max_position_embeddings": 40, "attention_dropout": 0.1}
    image = {**SHAPE, "image_size": 32, "patch_size": 4, "attention_dropout": 0.1}
    return built(
        "CLIPModel",
        settings("CLIPConfig", text_config=text, vision_config=image, projection_dim=32),
    )


def siglip() -> nn.Module:
    text = {**SHAPE, "vocab_size": WORDS, "max_position_embeddings": 40, "attention_dropout": 0.1}
    image = {**SHAPE, "image_size": 32, "patch_size": 4, "attention_dropout": 0.1}
    return built("SiglipModel", settings("SiglipConfig", text_config=text, vision_config=image))


def detr() -> nn.Module:
    backbone = settings(
        "ResNetConfig",
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    return built(
        "DetrForObjectDetection",
        settings(
            "DetrConfig",
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=64,
            encoder_layers=4,
            decoder_layers=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            num_queries=20,
            num_labels=4,
        ),
    )


IMAGES = [
    Case("ViT", _image("ViTForImageClassification", "ViTConfig"), images),
    Case("DeiT", _image("DeiTForImageClassification", "DeiTConfig"), images),
    Case(
        "BEiT",
        _image(
            "BeitForImageClassification",
            "BeitConfig",
            use_relative_position_bias=True,
            drop_path_rate=0.1,
        ),
        images,
    ),
    Case("DINOv2", _image("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2), images),
    Case(
        "Swin",
        maker(
            "SwinForImageClassification",
            "SwinConfig",
            image_size=32,
            patch_size=2,
            embed_dim=32,
            depths=[2, 4, 2],
            num_heads=[2, 2, 4],
            window_size=4,
            mlp_ratio=2.0,
            **PYRAMID,
        ),
        images,
        quick=True,
    ),
    Case(
        "Swin v2",
        maker(
            "Swinv2ForImageClassification",
            "Swinv2Config",
            image_size=32,
            patch_size=2,
            embed_dim=32,
            depths=[2, 4, 2],
            num_heads=[2, 2, 4],
            window_size=4,
            mlp_ratio=2.0,
            **PYRAMID,
        ),
        images,
    ),
    Case(
        "ConvNeXt",
        maker(
            "ConvNextForImageClassification",
            "ConvNextConfig",
            hidden_sizes=[32, 64, 96],
            depths=[3, 3, 3],
            num_stages=3,
            patch_size=4,
            num_labels=4,
            drop_path_rate=0.1,
        ),
        growing,
        share=0.85,
    ),
    Case(
        "ConvNeXt v2",
        maker(
            "ConvNextV2ForImageClassification",
            "ConvNextV2Config",
            hidden_sizes=[32, 64, 96],
            depths=[3, 3, 3],
            num_stages=3,
            patch_size=4,
            num_labels=4,
            drop_path_rate=0.1,
        ),
        growing,
        share=0.85,
    ),
    Case(
        "ResNet",
        maker(
            "ResNetForImageClassification",
            "ResNetConfig",
            embedding_size=16,
            hidden_sizes=[32, 64, 96],
            depths=[4, 4, 2],
            layer_type="bottleneck",
            num_labels=4,
        ),
        many,
        share=0.85,
        quick=True,
        exact=False,
        note="batch norm; random state",
    ),
    Case(
        "RegNet",
        maker(
            "RegNetForImageClassification",
            "RegNetConfig",
            embedding_size=16,
            hidden_sizes=[64, 96],
            depths=[4, 4],
            groups_width=16,
            num_labels=4,
        ),
        growing,
        share=0.85,
    ),
    Case(
        "MobileNetV2",
        maker(
            "MobileNetV2ForImageClassification",
            "MobileNetV2Config",
            depth_multiplier=0.35,
            num_labels=4,
        ),
        images,
        share=0.95,
    ),
    Case(
        "EfficientNet",
        maker(
            "EfficientNetForImageClassification",
            "EfficientNetConfig",
            width_coefficient=0.25,
            depth_coefficient=1.0,
            num_labels=4,
            hidden_dim=320,
        ),
        images,
        share=0.85,
    ),
    Case(
        "SegFormer",
        maker(
            "SegformerForImageClassification",
            "SegformerConfig",
            depths=[2, 2, 2],
            num_encoder_blocks=3,
            hidden_sizes=[16, 32, 64],
            num_attention_heads=[1, 2, 4],
            sr_ratios=[4, 2, 1],
            patch_sizes=[3, 3, 3],
            strides=[2, 2, 2],
            mlp_ratios=[2, 2, 2],
            **PYRAMID,
        ),
        growing,
    ),
    Case(
        "PoolFormer",
        maker(
            "PoolFormerForImageClassification",
            "PoolFormerConfig",
            depths=[2, 2, 2, 2],
            hidden_sizes=[16, 32, 32, 64],
            patch_sizes=[3, 3, 3, 3],
            strides=[2, 2, 2, 2],
            padding=[1, 1, 1, 1],
            mlp_ratio=2.0,
            drop_path_rate=0.1,
            num_labels=4,
        ),
        growing,
        exact=False,
        note="random state",
    ),
    Case(
        "MobileViT",
        maker(
            "MobileViTForImageClassification",
            "MobileViTConfig",
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
            image_size=64,
            num_labels=4,
            num_attention_heads=4,
        ),
        small,
        share=0.95,
        blocks=("mobilevit.encoder.layer.*",),
        note="`blocks=` names its convolutional stages, too",
    ),
]


SCENES = [
    Case(
        "VideoMAE",
        maker(
            "VideoMAEForVideoClassification",
            "VideoMAEConfig",
            **{**IMAGE, "patch_size": 8},
            num_frames=4,
            tubelet_size=2,
        ),
        videos,
    ),
    Case("CLIP", clip, with_images),
    Case("SigLIP", siglip, with_images),
    Case(
        "DETR",
        detr,
        scenes,
        exact=False,
        note="earlier table",
    ),
    Case(
        "YOLOS",
        maker(
            "YolosForObjectDetection",
            "YolosConfig",
            **{**IMAGE, "image_size": [64, 64], "patch_size": 8},
            num_detection_tokens=10,
        ),
        scenes,
    ),
    Case(
        "SegFormer, semantic",
        maker(
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            depths=[2, 2, 2, 2],
            hidden_sizes=[16, 32, 32, 64],
            num_attention_heads=[1, 2, 2, 4],
            strides=[2, 2, 2, 2],
            mlp_ratios=[2] * 4,
            decoder_hidden_size=32,
            **PYRAMID,
        ),
        masks,
    ),
]
