"""Tasks over text: lengths, vocabularies, and weights from the hub or a folder."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from mimose.records import Size
from mimose_bench.experiments.data.examples import StoredText, TextData, TextExample
from mimose_bench.experiments.data.hub import from_hub_or_cache
from mimose_bench.experiments.data.sources import DataSource, open_source
from mimose_bench.experiments.data.synthetic import Generated
from mimose_bench.experiments.tasks.base import SizeBin
from mimose_bench.experiments.tasks.common import TaskBase

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

E = TypeVar("E", bound=TextExample)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSetting:
    """Shape of a text task's model and batches at one scale.

    Attributes:
        num_layers: Layers of the model (of its encoder, and as many of its decoder).
        hidden: Width of the model.
        num_heads: Attention heads.
        batch_size: Samples in a batch.
        max_length: Tokens in the longest example.
        vocab_size: Tokens of generated data, and of the model that is trained on it.
        lr: Learning rate.
        num_examples: Examples in an epoch of generated data.
        stride: Tokens that two windows of a long text share, where a task cuts windows.
    """

    num_layers: int
    hidden: int
    num_heads: int
    batch_size: int
    max_length: int
    vocab_size: int
    lr: float
    num_examples: int
    stride: int = 0


class TextTask(TaskBase[E], Generic[E]):
    """A task whose batches are padded to their longest example.

    Attributes:
        pretrained: The hub's name of the weights and of the tokenizer.
        model_class: Name of the model's class in ``transformers``.
        generated: Kind of its generated data.
        imitates: What to say of that.
        shortest: Fewest tokens of an example that can be generated.
    """

    pretrained: ClassVar[str]
    model_class: ClassVar[str]
    generated: ClassVar[type[Generated[Any]]]
    imitates: ClassVar[str]
    shortest: ClassVar[int] = 8
    setting: Any
    data: TextData[E]

    # -- what a text task must say

    @abstractmethod
    def _open_hub(self, reason: str) -> TextData[E]:
        """Open the hub's data set; raises ``HubUnavailableError`` where that is not to be had."""

    @abstractmethod
    def _open_path(self, path: Path, vocab: Path | None, reason: str) -> TextData[E]:
        """Open a local file in the data set's own format."""

    @abstractmethod
    def _config(self) -> Any:
        """Return the configuration of the model with random weights."""

    # -- what follows from it

    def _open(self) -> DataSource:
        options = self.options
        if options.weights == "pretrained" and options.scale != "full":
            raise ValueError(
                f"--weights pretrained needs --scale full: {self.pretrained} has no "
                f"{options.scale} size"
            )
        vocab = None if options.vocab is None else Path(options.vocab)
        self.data = open_source(
            options.data,
            hub=self._open_hub,
            path=lambda path, reason: self._open_path(Path(path), vocab, reason),
            synthetic=self._synthetic,
        )
        return self.data.source

    @property
    def num_examples(self) -> int:
        """Number of examples in an epoch."""
        return self.data.num_examples

    def _synthetic(self, reason: str, vocab_size: int | None = None) -> Generated[E]:
        """Return generated data, by default with the scale's number of tokens."""
        setting = self.setting
        return self.generated(
            source=DataSource(kind="synthetic", detail=self.imitates, reason=reason),
            max_length=setting.max_length,
            vocab_size=setting.vocab_size if vocab_size is None else vocab_size,
            num_examples=setting.num_examples,
        )

    def build_model(self) -> nn.Module:
        """Return the model in training mode and fp32, on the CPU; see ``Task``."""
        import transformers

        kind = getattr(transformers, self.model_class)
        model = kind(self._config()) if self.options.weights == "random" else self._load(kind)
        return model.float().train()

    def _examples(self, steps: int) -> Iterator[Sequence[E]]:
        return self.data.batches(self.batch_size, steps, self.options.seed)

    def _size(self, examples: Sequence[E]) -> Size:
        longest = tuple(map(max, zip(*(example.lengths for example in examples))))
        return len(examples) * self.rows_per_sample, *self._padded(longest)

    def sizes(self, steps: int) -> Iterator[Size]:
        """Yield the sizes of the batches that ``batches`` would yield; see ``Task``."""
        if not isinstance(self.data, Generated) or len(self._limits()) > 1:
            yield from super().sizes(steps)
            return
        # What is generated knows its lengths before its words.
        for lengths in self.data.lengths(self.batch_size, steps, self.options.seed):
            yield len(lengths) * self.rows_per_sample, max(lengths)

    def _examples_of(self, size: Size) -> Sequence[E]:
        rows, *lengths = size
        limits = self._limits()
        per_sample = self.rows_per_sample
        if (
            len(lengths) != len(limits)
            or rows < 1
            or rows % per_sample
            or not all(low <= x <= high for x, (low, high) in zip(lengths, limits))
        ):
            allowed = " and ".join(
                f"{low} to {high}" if low < high else f"{high}" for low, high in limits
            )
            of = "" if per_sample == 1 else f", {per_sample} sequences a sample"
            raise ValueError(
                f"a batch of {self.name} has a size of (sequences, tokens) with {allowed} tokens "
                f"at scale {self.scale}{of}, not {size}"
            )
        generator = self._synthetic("example", vocab_size=self.data.vocab_size)
        seed = self.options.seed
        return generator.examples_of_size(rows // per_sample, tuple(lengths), seed)

    def longest(self) -> Size:
        """Return the size of the largest batch to come; see ``Task``."""
        samples = min(self.batch_size, self.data.num_examples)
        return samples * self.rows_per_sample, *self._padded(self.data.longest)

    def size_bins(self) -> tuple[SizeBin, ...]:
        """Return the distribution of an epoch's batch sizes; see ``Task``."""
        bins = self.data.length_bins(self.batch_size, self.options.seed, self._bin_width())
        return tuple(SizeBin(self._full_size(b.length), b.share) for b in bins)

    def example_lengths(self) -> np.ndarray | None:
        """Return the length of each example, where they are stored, in tokens."""
        return self.data.lengths[:, 0] if isinstance(self.data, StoredText) else None

    def parse_size(self, text: str) -> Size:
        """Return the size of a full batch of a padded length, for example ``384``."""
        if not re.fullmatch(r"\d+", text.strip()):
            raise ValueError(f"a length of {self.name} is a number of tokens, not {text!r}")
        return self._full_size(int(text))

    def _full_size(self, length: int) -> Size:
        """Return the size of a full batch of which this is the first padded length."""
        rows, _, *others = self.longest()
        return rows, length, *others

    def _limits(self) -> tuple[tuple[int, int], ...]:
        """Return the least and the greatest of each of the lengths that a batch can have."""
        return ((self.shortest, self.setting.max_length),)

    def _padded(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return the lengths that a batch of these greatest lengths is padded to."""
        return lengths

    def _bin_width(self) -> float:
        """Return the width of the paper's bins in tokens, at this scale."""
        histogram = self.paper_lengths()
        width = 8.0 if histogram is None else histogram.bin_width
        longest = self.settings_by_scale["full"].max_length
        return width * self.setting.max_length / longest

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings as plain data."""
        return {
            **super().settings(),
            "model": self.model_class,
            "vocab_size": self.data.vocab_size,
            "num_examples": self.data.num_examples,
        }

    def _bert_shape(self) -> dict[str, Any]:
        """Return the settings that the configurations of BERT and RoBERTa share."""
        setting = self.setting
        return {
            "vocab_size": self.data.vocab_size,
            "hidden_size": setting.hidden,
            "num_hidden_layers": setting.num_layers,
            "num_attention_heads": setting.num_heads,
            "intermediate_size": 4 * setting.hidden,
            "pad_token_id": self.data.pad_id,
            "attn_implementation": self.options.attention,
        }

    # -- weights

    def _load(self, loader: Any) -> Any:
        weights = self.options.weights
        options = {"attn_implementation": self.options.attention}
        if weights == "pretrained":
            try:
                model = from_hub_or_cache(loader, self.pretrained, "the model", **options)
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
        self._check(model, weights)
        return model

    def _check(self, model: Any, weights: str) -> None:
        """Raise ValueError if a loaded model does not fit the data."""
        rows = model.get_input_embeddings().num_embeddings
        if rows < self.data.vocab_size:
            raise ValueError(
                f"the model in {weights} knows {rows} tokens and the vocabulary has "
                f"{self.data.vocab_size}: use the vocabulary it was trained with"
            )
        positions = self._positions(model)
        longest = self.setting.max_length
        if positions is not None and positions < longest:
            raise ValueError(
                f"the model in {weights} takes {positions} tokens at most and --scale "
                f"{self.scale} needs {longest}"
            )

    def _positions(self, model: Any) -> int | None:
        """Return how many tokens a loaded model takes; None where it takes any number."""
        positions = getattr(model.config, "max_position_embeddings", None)
        return positions if positions and positions > 0 else None
