"""Translation: T5 on UN_PC, English to French, the paper's TR-T5."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mimose.records import Size
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.collate import collate_translations
from mimose_bench.experiments.data.examples import TextData, TranslationExample
from mimose_bench.experiments.data.synthetic_translation import SyntheticTranslation
from mimose_bench.experiments.tasks.base import Scale, SizeBin
from mimose_bench.experiments.tasks.text import TextSetting, TextTask

if TYPE_CHECKING:
    from torch import Tensor, nn


class TrT5(TextTask[TranslationExample]):
    """Translation from English to French (UN_PC), with T5.

    T5ForConditionalGeneration in the paper's setting: t5-base, batch 8, at most 512 tokens of
    source and of target, AdamW with PyTorch's default learning rate of 1e-3, 4,000 sentences. As in
    the released script labels are padded to that maximum, so that only the encoder's length varies;
    with ``labels=longest`` they are padded to the longest of the batch, and both vary.
    """

    name = "tr-t5"
    title = "TR-T5"
    dataset = "UN_PC"
    pretrained = "t5-base"
    model_class = "T5ForConditionalGeneration"
    generated = SyntheticTranslation
    imitates = (
        "words from a skewed distribution in batches of UN_PC's padded lengths, each with a fixed "
        "translation"
    )
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"labels": ("max", "longest")}
    settings_by_scale: ClassVar[Mapping[Scale, TextSetting]] = {
        "full": TextSetting(
            num_layers=12,
            hidden=768,
            num_heads=12,
            batch_size=8,
            max_length=512,
            vocab_size=32128,
            lr=1e-3,
            num_examples=4000,
        ),
        "small": TextSetting(
            num_layers=12,
            hidden=128,
            num_heads=2,
            batch_size=2,
            max_length=512,
            vocab_size=32128,
            lr=1e-3,
            num_examples=4000,
        ),
        "tiny": TextSetting(
            num_layers=2,
            hidden=64,
            num_heads=1,
            batch_size=4,
            max_length=96,
            vocab_size=1024,
            lr=1e-3,
            num_examples=203,
        ),
    }

    def _open_hub(self, reason: str) -> TextData[TranslationExample]:
        from mimose_bench.experiments.data import unpc_text

        setting = self.setting
        return unpc_text.open_hub(self.pretrained, setting.max_length, setting.num_examples, reason)

    def _open_path(
        self, path: Path, vocab: Path | None, reason: str
    ) -> TextData[TranslationExample]:
        from mimose_bench.experiments.data import unpc_text

        # As many as the paper took: all of UN_PC's 30 million pairs would not fit in memory.
        samples = self.settings_by_scale["full"].num_examples
        return unpc_text.open_path(path, vocab, self.setting.max_length, reason, samples)

    def _config(self) -> Any:
        from transformers import T5Config

        setting = self.setting
        return T5Config(
            vocab_size=self.data.vocab_size,
            d_model=setting.hidden,
            d_kv=setting.hidden // setting.num_heads,
            d_ff=4 * setting.hidden,
            num_layers=setting.num_layers,
            num_heads=setting.num_heads,
            pad_token_id=self.data.pad_id,
            decoder_start_token_id=self.data.pad_id,
            attn_implementation=self.options.attention,
        )

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the mean cross entropy of the target's tokens."""
        return model(**tensors, use_cache=False).loss  # there is nothing to generate from it

    def _collate(self, examples: Sequence[TranslationExample]) -> Batch:
        label_length = self.setting.max_length if self._padded_to_most else None
        return collate_translations(examples, self.data.pad_id, label_length)

    @property
    def _padded_to_most(self) -> bool:
        return self.chosen["labels"] == "max"

    def _limits(self) -> tuple[tuple[int, int], ...]:
        source, target = super()._limits() * 2
        return source, (target[1], target[1]) if self._padded_to_most else target

    def _padded(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        return (lengths[0], self.setting.max_length) if self._padded_to_most else lengths

    def size_bins(self) -> tuple[SizeBin, ...]:
        """Return the distribution of an epoch's batch sizes, by the encoder's length."""
        if self._padded_to_most:
            return super().size_bins()
        rows = self.longest()[0]
        sizes = np.array([size for size in self.sizes(self.epoch_steps) if size[0] == rows])
        number = ((sizes[:, 1] - sizes[:, 1].min()) // self._bin_width()).astype(np.int64)
        members = [sizes[number == each] for each in np.unique(number)]
        return tuple(
            SizeBin(tuple(round(float(x)) for x in group.mean(axis=0)), len(group) / len(sizes))
            for group in members
        )

    def parse_size(self, text: str) -> Size:
        """Return the size of a full batch of such lengths, for example ``384x128``.

        The decoder's may be left out where labels are padded to the maximum.
        """
        found = re.fullmatch(r"(\d+)(?:\s*[xX]\s*(\d+))?", text.strip())
        if not found:
            raise ValueError(f"a size of {self.name} is 384 or 384x128, in tokens, not {text!r}")
        source, target = found.groups()
        if target is None and not self._padded_to_most:
            raise ValueError(
                f"a size of {self.name} with labels=longest has the decoder's length, too: write "
                f"{text.strip()}x128, for example"
            )
        longest = self.setting.max_length
        if target is not None and self._padded_to_most and int(target) != longest:
            raise ValueError(
                f"labels of {self.name} are padded to {longest} tokens: write {source}, or use "
                "labels=longest"
            )
        return self.longest()[0], int(source), longest if target is None else int(target)
