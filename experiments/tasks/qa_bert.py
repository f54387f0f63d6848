"""Extractive question answering: BERT on SQuAD v1.1, the paper's QA-Bert."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimose.records import Size
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.hub import from_hub_or_cache
from mimose_bench.experiments.data.lengths import LengthBin
from mimose_bench.experiments.data.prefetch import prefetch
from mimose_bench.experiments.data.qa import QaData, collate
from mimose_bench.experiments.data.sources import DataSource, open_source
from mimose_bench.experiments.data.squad_text import open_hub, open_path
from mimose_bench.experiments.data.synthetic import SHORTEST, SQUAD_LONGEST, SyntheticQa
from mimose_bench.experiments.paper import Histogram, length_histogram
from mimose_bench.experiments.tasks.base import Scale, TaskOptions

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

PRETRAINED = "bert-base-uncased"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """Shape of the model and of its batches at one scale."""

    num_layers: int
    hidden: int
    num_heads: int
    batch_size: int
    max_length: int
    stride: int
    vocab_size: int
    lr: float
    num_examples: int


# Heads of 64 as in BERT-base: attention's share of a block's activations at a given length is
# then the same at every scale, and memory has the paper's shape over length, only less of it.
# Narrow models start from random weights: 3e-5, meant for pretrained ones, would not move them.
_SETTINGS: dict[Scale, _Setting] = {
    "full": _Setting(
        num_layers=12,
        hidden=768,
        num_heads=12,
        batch_size=12,
        max_length=512,
        stride=128,
        vocab_size=30522,
        lr=3e-5,
        num_examples=87599,
    ),
    "small": _Setting(
        num_layers=12,
        hidden=128,
        num_heads=2,
        batch_size=4,
        max_length=512,
        stride=128,
        vocab_size=30522,
        lr=3e-4,
        num_examples=87599,
    ),
    "tiny": _Setting(
        num_layers=4,
        hidden=64,
        num_heads=1,
        batch_size=4,
        max_length=128,
        stride=32,
        vocab_size=1024,
        lr=1e-3,
        num_examples=203,
    ),
}


class QaBert:
    """Question answering on SQuAD v1.1 with BERT.

    BertForQuestionAnswering with AdamW, batches padded to their longest example, in the paper's
    setting: batch 12, maximum 512, stride 128, learning rate 3e-5. At ``small`` the learning rate
    is 3e-4 and at ``tiny`` 1e-3: random weights need a larger one for the loss to fall visibly
    within 200 steps, and twelve layers without warm-up diverge at 1e-3.
    """

    name = "qa-bert"
    title = "QA-Bert"

    def __init__(self, options: TaskOptions) -> None:
        self.options = options
        self.scale: Scale = options.scale
        self._setting = setting = _SETTINGS[options.scale]
        self.batch_size = options.batch_size or setting.batch_size
        self.lr = options.lr or setting.lr
        if options.weights == "pretrained" and options.scale != "full":
            raise ValueError(
                f"--weights pretrained needs --scale full: {PRETRAINED} has no {options.scale} size"
            )
        vocab = None if options.vocab is None else Path(options.vocab)
        window = setting.max_length, setting.stride
        self._data: QaData = open_source(
            options.data,
            hub=lambda reason: open_hub(PRETRAINED, *window, reason),
            path=lambda path, reason: open_path(Path(path), vocab, *window, reason),
            synthetic=self._synthetic,
        )
        self.data_source = self._data.source
        for note in self.data_source.notes:
            log.warning("%s: %s", self.name, note)

    def build_model(self) -> nn.Module:
        """Return BertForQuestionAnswering in training mode and fp32; see :class:`Task`."""
        from transformers import BertForQuestionAnswering

        if self.options.weights == "random":
            model = BertForQuestionAnswering(self._config())
        else:
            model = self._load_weights(BertForQuestionAnswering)
        return model.float().train()

    def batches(
        self, steps: int, *, context: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> Iterator[Batch]:
        """Yield ``steps`` batches of size ``(batch, padded length)``; see :class:`Task`."""
        data = self._data
        examples = data.batches(self.batch_size, steps, self.options.seed)
        batches = (collate(each, data.pad_id) for each in examples)
        return prefetch(batches, context=context)

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the mean cross entropy of the answer's first and last position."""
        return model(**tensors).loss

    def optimizer(self, model: nn.Module, *, foreach: bool | None = None) -> optim.Optimizer:
        """Return AdamW without weight decay, as in the Hugging Face scripts that the paper ran.

        The learning rate is 3e-5 at full scale, 3e-4 at small and 1e-3 at tiny, or the one
        asked for. ``foreach`` as in :class:`Task`.
        """
        from torch.optim import AdamW

        trainable = [p for p in model.parameters() if p.requires_grad]
        return AdamW(trainable, lr=self.lr, weight_decay=0.0, foreach=foreach)

    def example_batch(self, size: Size) -> Batch:
        """Return a generated batch of ``(batch, padded length)``; see :class:`Task`."""
        longest = self._setting.max_length
        if len(size) != 2 or size[0] < 1 or not SHORTEST <= size[1] <= longest:
            raise ValueError(
                f"a batch of {self.name} has a size of (samples, tokens) with {SHORTEST} to "
                f"{longest} tokens at scale {self.scale}, not {size}"
            )
        generator = self._synthetic("example", vocab_size=self._data.vocab_size)
        examples = generator.examples_of_size(size[0], size[1], self.options.seed)
        return collate(examples, self._data.pad_id)

    def sizes(self, steps: int) -> Iterator[Size]:
        """Yield ``(batch, padded length)`` of the batches to come; see :class:`Task`."""
        for examples in self._data.batches(self.batch_size, steps, self.options.seed):
            yield len(examples), max(len(example.tokens) for example in examples)

    def longest(self) -> Size:
        """Return ``(batch, length)`` of the largest batch to come; see :class:`Task`."""
        return min(self.batch_size, self._data.num_examples), self._data.longest

    def paper_lengths(self) -> Histogram:
        """Return the paper's histogram of SQuAD's padded batch lengths (Fig 3, batch 12)."""
        return length_histogram("SQuAD")

    def length_bins(self) -> tuple[LengthBin, ...]:
        """Return the distribution of padded batch lengths over an epoch; see :class:`Task`."""
        width = self.paper_lengths().bin_width * self._setting.max_length / SQUAD_LONGEST
        return self._data.length_bins(self.batch_size, self.options.seed, width)

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings as plain data."""
        shape = asdict(self._setting)
        shape.update(
            batch_size=self.batch_size,
            lr=self.lr,
            vocab_size=self._data.vocab_size,
            num_examples=self._data.num_examples,
        )
        return {
            "task": self.name,
            "scale": self.scale,
            "model": "BertForQuestionAnswering",
            "weights": self.options.weights,
            "attention": self.options.attention,
            "optimizer": "AdamW",
            "data": self.data_source.to_json(),
            **shape,
        }

    def _synthetic(self, reason: str, vocab_size: int | None = None) -> SyntheticQa:
        setting = self._setting
        source = DataSource(
            kind="synthetic",
            detail="random words in batches of SQuAD's padded lengths, answers marked by tokens",
            reason=reason,
        )
        return SyntheticQa(
            source,
            setting.max_length,
            setting.vocab_size if vocab_size is None else vocab_size,
            setting.num_examples,
        )

    def _config(self) -> Any:
        from transformers import BertConfig

        setting = self._setting
        return BertConfig(
            vocab_size=self._data.vocab_size,
            hidden_size=setting.hidden,
            num_hidden_layers=setting.num_layers,
            num_attention_heads=setting.num_heads,
            intermediate_size=4 * setting.hidden,
            max_position_embeddings=setting.max_length,
            pad_token_id=self._data.pad_id,
            attn_implementation=self.options.attention,
        )

    def _load_weights(self, loader: Any) -> Any:
        weights = self.options.weights
        options = {"attn_implementation": self.options.attention}
        if weights == "pretrained":
            try:
                model = from_hub_or_cache(loader, PRETRAINED, "the model", **options)
            except ValueError as error:
                raise ValueError(f"{error}: use --weights random or --weights PATH") from None
        elif not (Path(weights) / "config.json").is_file():
            raise ValueError(
                f"--weights is random, pretrained or a folder with a saved model, and {weights} "
                "holds no config.json"
            )
        else:
            try:
                model = loader.from_pretrained(weights, local_files_only=True, **options)
            except (OSError, ValueError, KeyError, RuntimeError) as error:
                first = str(error).splitlines()[0]
                raise ValueError(f"no model could be loaded from {weights}: {first}") from error
        rows = model.get_input_embeddings().num_embeddings
        if rows < self._data.vocab_size:
            raise ValueError(
                f"the model in {weights} knows {rows} tokens and the vocabulary has "
                f"{self._data.vocab_size}: use the vocabulary it was trained with"
            )
        positions = getattr(model.config, "max_position_embeddings", self._setting.max_length)
        if positions < self._setting.max_length:
            raise ValueError(
                f"the model in {weights} takes {positions} tokens at most and --scale "
                f"{self.scale} needs {self._setting.max_length}"
            )
        return model
