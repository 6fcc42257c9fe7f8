"""Lengths of inputs without tokens, counted from texts by a tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from summaries import warnings_of
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import rlpost
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["nine", "plus", "three", "equals", "twelve", "“ß”", "\n", "so", "<think>", "</s>"]
ROWS = 24
RANDOM = np.random.default_rng(3)
TEXTS = ["", *(" ".join(RANDOM.choice(WORDS, RANDOM.integers(1, 30))) for _ in range(ROWS - 1))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that adds special tokens, pads and truncates, unless it is told not to."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(20)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def reference(trained: Path) -> list[int]:
    """The number of tokens of each text, one by one, without what the template adds."""
    document = json.loads((trained / "tokenizer.json").read_text())
    document |= {"post_processor": None, "padding": None, "truncation": None}
    tokenizer = Tokenizer.from_str(json.dumps(document))
    return [len(tokenizer.encode(text).ids) for text in TEXTS]


def table(**more: Any) -> pa.Table:
    groups = [f"p{i // 4}" for i in range(ROWS)]
    rewards = (np.arange(ROWS) * 7 % 5 / 4).tolist()
    return pa.table({"prompt_id": groups, "reward": rewards, "completion": TEXTS, **more})


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"nine": 0}, unk_token="[UNK]"),  # noqa: S106
        models.WordPiece({"nine": 0}, unk_token="[UNK]"),  # noqa: S106
        models.Unigram([("a", -1.0)]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_tokenizer_without_a_token_for_unknown_words_is_an_error(model, tmp_path):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    recipe = Recipe(estimator="opo", tokenizer=str(tmp_path))
    with pytest.raises(UsageError, match=rf"--tokenizer {tmp_path}: .*row 0 or later"):
        rlpost.enrich(table(), recipe)


@pytest.mark.parametrize("options", [{"estimator": "opo"}, {"length_weight": True}], ids=str)
def test_lengths_are_those_of_the_texts(trained, options, tmp_path):
    lengths = reference(trained)
    assert lengths[0] == 0
    assert max(lengths) > 20
    path = tmp_path / "in.parquet"
    pq.write_table(table(), path, row_group_size=5)
    run = rlpost.Options(chunk_tokens=7)
    recipe = Recipe.of({**options, "tokenizer": str(trained)})
    summary = rlpost.advantages(path, tmp_path / "out.parquet", recipe, run)
    expected, of_column = rlpost.enrich(table(response_length=lengths), Recipe.of(options))
    names = ["response_advantage", "response_level_rewards", "sample_mask"]
    names += ["sample_weight"] if "length_weight" in options else []
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.select(names).equals(expected.select(names).cast(written.select(names).schema))
    assert summary.tokens == of_column.tokens == {"all": sum(lengths), "policy": sum(lengths)}
    assert summary.roles["response"]["column"] == "completion"
    assert rlpost.verify(tmp_path / "out.parquet", tokenizer=str(trained)).ok


def test_a_column_of_lengths_is_not_ignored_silently(trained):
    _, summary = rlpost.enrich(table(response_length=[1] * ROWS), Recipe(tokenizer=str(trained)))
    (warning,) = (text for text in warnings_of(summary) if "ignored" in text)
    assert warning.startswith("`response_length` ignored: --tokenizer counts the tokens of `compl")


MASK = {"response_mask": [[1]] * ROWS}


@pytest.mark.parametrize(
    ("columns", "options", "kind", "text"),
    [
        (MASK, {}, UsageError, "has no effect, because the input has lists of tokens"),
        ({}, {"columns": {"response_length": "reward"}}, UsageError, "both set the length"),
        ({"completion": [None] * ROWS}, {}, DataError, "row 0: `completion` is null"),
        ({"completion": [1] * ROWS}, {}, DataError, "`completion` is int64; a text is needed"),
        ({"completion": None}, {}, DataError, "no column for response (the texts whose tokens"),
        ({}, {"tokenizer": "no/where/x"}, ReadWriteError, "no/where/x: no such file or folder"),
        ({}, {"tokenizer": "tests"}, ReadWriteError, "the folder has no tokenizer.json"),
        ({}, {"tokenizer": "README.md"}, UsageError, "README.md: is no tokenizer.json"),
        ({}, {"tokenizer": None, "columns": {"response": "prompt_id"}}, UsageError, "no effect"),
    ],
)
def test_options_without_effect_and_bad_texts_are_errors(trained, columns, options, kind, text):
    rows = table().to_pydict() | columns
    rows = pa.table({name: values for name, values in rows.items() if values is not None})
    if columns.get("completion") == [None] * ROWS:
        rows = rows.set_column(2, "completion", pa.nulls(ROWS, pa.string()))
    with pytest.raises(kind) as error:
        rlpost.enrich(rows, Recipe.of({"tokenizer": str(trained), **options}))
    assert text in str(error.value)
