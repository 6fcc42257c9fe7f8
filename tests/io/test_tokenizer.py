"""Token ids and lengths that a conversion makes of texts by a tokenizer."""

from __future__ import annotations

import json
<<<<<<< HEAD:tests/pipeline/test_tokenizer.py
from typing import TYPE_CHECKING, Any
=======
from pathlib import Path
>>>>>>> 47efcea0 (A recipe names no tokenizer, a splice rewrites nothing, a clock has wall times alone; filters of batches, Windows, warnings of slow stores and five findings go):tests/io/test_tokenizer.py

import numpy as np
import pyarrow.parquet as pq
import pytest
<<<<<<< HEAD:tests/pipeline/test_tokenizer.py
from summaries import warnings_of
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
=======
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
>>>>>>> 47efcea0 (A recipe names no tokenizer, a splice rewrites nothing, a clock has wall times alone; filters of batches, Windows, warnings of slow stores and five findings go):tests/io/test_tokenizer.py

import rlpost
from rlpost.errors import ReadWriteError, UsageError
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


def dump(folder: Path) -> Path:
    """Write a dump of verl with the texts."""
    lines = [{"input": "q", "output": text, "gts": None, "score": 1.0, "step": 1} for text in TEXTS]
    path = folder / "1.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def reference(trained: Path) -> list[int]:
    """The number of tokens of each text, one by one, without what the template adds."""
    document = json.loads((trained / "tokenizer.json").read_text())
    document |= {"post_processor": None, "padding": None, "truncation": None}
    tokenizer = Tokenizer.from_str(json.dumps(document))
    return [len(tokenizer.encode(text).ids) for text in TEXTS]


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
    with pytest.raises(UsageError, match=rf"--tokenizer {tmp_path}: .*row 0 or later"):
        rlpost.convert(dump(tmp_path), tmp_path / "in.parquet", tokenizer=str(tmp_path))


<<<<<<< HEAD:tests/pipeline/test_tokenizer.py
def test_a_column_of_lengths_is_not_ignored_silently(trained):
    _, summary = rlpost.enrich(table(response_length=[1] * ROWS), Recipe(tokenizer=str(trained)))
    (warning,) = (text for text in warnings_of(summary) if "ignored" in text)
    assert warning.startswith("`response_length` ignored: --tokenizer counts the tokens of `compl")


MASK = {"response_mask": [[1]] * ROWS}
=======
def test_a_conversion_makes_ids_and_lengths_and_a_run_counts_by_them(trained, tmp_path):
    out = tmp_path / "in.parquet"
    summary = rlpost.convert(dump(tmp_path), out, tokenizer=str(trained))
    written = pq.read_table(tmp_path / "in.parquet")
    assert written["response_length"].to_pylist() == reference(trained)
    tokenizer = Tokenizer.from_file(str(trained / "tokenizer.json"))
    tokenizer.decoder = decoders.ByteLevel()
    ids = written["response_token_ids"].to_pylist()
    assert [tokenizer.decode(one, skip_special_tokens=False) for one in ids] == TEXTS
    assert "response_length" in summary.roles
    opo = Recipe(estimator="opo")
    run = rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet", opo)
    assert run.tokens["policy"] == sum(reference(trained))
    with pytest.raises(UsageError, match="has `response_token_ids`, which sets the length"):
        rlpost.convert(
            tmp_path / "in.parquet",
            tmp_path / "b.parquet",
            source="parquet",
            tokenizer=str(trained),
        )


TRAINERS = Path(__file__).parents[1] / "written" / "trainers"


@pytest.mark.parametrize(
    "dump", ["verl", "verl-v1", "ms-swift/grpo", "ms-swift/gkd", "ms-swift/ray", "open-instruct"]
)
def test_made_ids_are_marked_and_a_finding_of_every_layout_of_texts(trained, dump, tmp_path):
    out = tmp_path / "in.parquet"
    if with_lengths := dump == "open-instruct":
        with pytest.raises(UsageError, match=r"--tokenizer \S+: has no effect"):
            rlpost.convert(TRAINERS / dump, out, tokenizer=str(trained))
        rlpost.convert(TRAINERS / dump, out)
    else:
        rlpost.convert(TRAINERS / dump, out, tokenizer=str(trained))
    metadata = pq.read_metadata(out).metadata
    made = metadata.get(b"rlpost.tokenizer", b"").decode()
    assert made == ("" if with_lengths else str(trained))
    found = {one.check for one in rlpost.inspect(out).findings}
    assert ("made_token_ids" in found) == bool(made)
>>>>>>> 47efcea0 (A recipe names no tokenizer, a splice rewrites nothing, a clock has wall times alone; filters of batches, Windows, warnings of slow stores and five findings go):tests/io/test_tokenizer.py


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("no/where/x", ReadWriteError, "no/where/x: no such file or folder"),
        ("tests", ReadWriteError, "the folder has no tokenizer.json"),
        ("README.md", UsageError, "README.md: is no tokenizer.json"),
    ],
)
def test_a_name_that_is_no_tokenizer_is_an_error(name, kind, text, tmp_path):
    with pytest.raises(kind) as error:
        rlpost.convert(dump(tmp_path), tmp_path / "in.parquet", tokenizer=name)
    assert text in str(error.value)
