"""Numbers of tokens of texts, by a tokenizer of the library `tokenizers`."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.arrow import is_string, without_dictionary
from rlpost.optional import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.io.arrow import CellLocation


FILE = "tokenizer.json"
"""The file of a tokenizer in its folder."""
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PANIC = "PanicException"
"""The class of errors in the library's Rust code, which is no `Exception`."""
_CHARACTERS = 1 << 20  # of the texts that are encoded at once: an encoding has 100 bytes per token


def load_tokenizer(name: str) -> Any:
    """Return a tokenizer without padding and truncation; each is loaded once per process.

    Args:
        name: a file `tokenizer.json`, its folder, or a repository of the Hugging Face Hub.

    Raises:
        UnavailableError: the library is not installed.
        UsageError: the file is no tokenizer.
        ReadWriteError: there is no such file or folder, and the Hub has none or cannot be reached.
    """
    need("--tokenizer", "tokenizers", "tokenizers")
    path = Path(name)
    file = path / FILE if path.is_dir() else path
    try:
        changed = file.stat().st_mtime_ns if file.is_file() else None
    except OSError as error:
        raise ReadWriteError(f"--tokenizer {name}: cannot be read: {error.strerror}") from None
    if changed is None and (path.exists() or not _HUB_NAME.fullmatch(name)):
        lacks = f"the folder has no {FILE}" if path.is_dir() else "no such file or folder"
        raise ReadWriteError(f"--tokenizer {name}: {lacks}; a {FILE} or its folder is needed")
    return _loaded(name if changed is None else str(file), name, changed)


@lru_cache(maxsize=4)
def _loaded(source: str, name: str, changed: int | None) -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

    try:
        if changed is not None:
            tokenizer = Tokenizer.from_file(source)
        else:
            tokenizer = Tokenizer.from_pretrained(source)
    except BaseException as error:  # noqa: BLE001 - `_reason` raises others
        why = _reason(error)
        if changed is not None:
            raise UsageError(f"--tokenizer {name}: is no {FILE}: {why}") from None
        raise ReadWriteError(
            f"--tokenizer {name}: no such file or folder here, and the Hugging Face Hub has no "
            f"tokenizer of this name or cannot be reached: {why}"
        ) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _reason(error: BaseException) -> str:
    """Return the reason of an error of the library; raise an error that is of another one."""
    panic = type(error).__name__ == _PANIC
    if isinstance(error, MemoryError) or not (panic or isinstance(error, Exception)):
        raise error
    return str(error).partition("\n")[0]


def token_counts(name: str, texts: pa.Array, location: CellLocation) -> NDArray[np.int64]:
    """Return the number of tokens of each text, [n].

    Texts are encoded as they are: no special tokens are added, and an end-of-sequence token that
    the text does not have is not counted. A special token that is written in a text is one token.

    Args:
        name: as of `load_tokenizer`.
        texts: [n] strings.
        location: of the texts, for errors.

    Raises:
        DataError: a value is null or no text.
        UsageError: the tokenizer cannot encode a text, because its vocabulary lacks a token; or as
            `load_tokenizer`.
        UnavailableError, ReadWriteError: as `load_tokenizer`.
    """
    texts = without_dictionary(texts)
    kind = texts.type
    if not is_string(kind):
        raise location.error(0, f"is {kind}", "a text is needed, whose tokens --tokenizer counts")
    if texts.null_count:
        row = texts.is_null().index(True).as_py()
        raise location.error(row, "is null", "a text is needed; an empty one has 0 tokens")
    tokenizer, counts = load_tokenizer(name), list[int]()
    row = location.first_row
    for batch in _batches(texts.to_pylist()):
        try:
            encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        except BaseException as error:  # noqa: BLE001
            raise UsageError(
                f"--tokenizer {name}: cannot encode a text of {location.path}, row {row} or later: "
                f"{_reason(error)}",
                tip="correct the tokenizer: it needs a token for unknown words",
            ) from None
        counts += [len(tokens) for tokens in encoded]
        row += len(batch)
    return np.array(counts, dtype=np.int64)


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Yield the texts in order, about a million characters at a time."""
    first = characters = 0
    for i, text in enumerate(texts):
        characters += len(text)
        if characters >= _CHARACTERS:
            yield texts[first : i + 1]
            first, characters = i + 1, 0
    if first < len(texts):
        yield texts[first:]
