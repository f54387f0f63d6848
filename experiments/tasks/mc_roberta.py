"""Multiple choice: RoBERTa on SWAG, the paper's MC-Roberta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.collate import collate_choices
from mimose_bench.experiments.data.examples import ChoiceExample, TextData
from mimose_bench.experiments.data.synthetic_choices import NUM_CHOICES, SyntheticChoices
from mimose_bench.experiments.tasks.base import Scale
from mimose_bench.experiments.tasks.text import TextSetting, TextTask


class McRoberta(TextTask[ChoiceExample]):
    """Which of four endings goes on with a story (SWAG), with RoBERTa.

    RobertaForMultipleChoice in the paper's setting: roberta-base, batch 16, so that the model sees
    64 sequences, AdamW. The learning rate is 5e-5, the default of the script that the paper ran
    without naming one. For the rates of the smaller scales see ``qa-bert``.
    """

    name = "mc-roberta"
    title = "MC-Roberta"
    dataset = "SWAG"
    pretrained = "roberta-base"
    model_class = "RobertaForMultipleChoice"
    generated = SyntheticChoices
    imitates = "random words in batches of SWAG's padded lengths, right endings marked by a token"
    rows_per_sample = NUM_CHOICES
    settings_by_scale: ClassVar[Mapping[Scale, TextSetting]] = {
        "full": TextSetting(
            num_layers=12,
            hidden=768,
            num_heads=12,
            batch_size=16,
            max_length=512,
            vocab_size=50265,
            lr=5e-5,
            num_examples=73546,
        ),
        "small": TextSetting(
            num_layers=12,
            hidden=128,
            num_heads=2,
            batch_size=4,
            max_length=512,
            vocab_size=50265,
            lr=3e-4,
            num_examples=73546,
        ),
        "tiny": TextSetting(
            num_layers=4,
            hidden=64,
            num_heads=1,
            batch_size=4,
            max_length=64,
            vocab_size=1024,
            lr=1e-3,
            num_examples=203,
        ),
    }

    def _open_hub(self, reason: str) -> TextData[ChoiceExample]:
        from mimose_bench.experiments.data import swag_text

        return swag_text.open_hub(self.pretrained, self.setting.max_length, reason)

    def _open_path(self, path: Path, vocab: Path | None, reason: str) -> TextData[ChoiceExample]:
        from mimose_bench.experiments.data import swag_text

        return swag_text.open_path(path, vocab, self.setting.max_length, reason)

    def _config(self) -> Any:
        from transformers import RobertaConfig

        return RobertaConfig(
            **self._bert_shape(),
            # RoBERTa counts positions from the padding's id on.
            max_position_embeddings=self.setting.max_length + self.data.pad_id + 1,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
        )

    def _positions(self, model: Any) -> int | None:
        return model.config.max_position_embeddings - model.config.pad_token_id - 1

    def _check(self, model: Any, weights: str) -> None:
        super()._check(model, weights)
        if model.config.pad_token_id != self.data.pad_id:
            raise ValueError(
                f"the model in {weights} pads with token {model.config.pad_token_id} and the "
                f"vocabulary with {self.data.pad_id}: use the vocabulary it was trained with"
            )

    def _collate(self, examples: Sequence[ChoiceExample]) -> Batch:
        return collate_choices(examples, self.data.pad_id)
