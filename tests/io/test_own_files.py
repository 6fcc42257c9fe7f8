"""Files of rlpost's own: whatever they have, they are read as they were written, or not at all."""

import json
import os

import pytest

from rlpost.errors import ReadWriteError
from rlpost.io.outputs import read_file
from rlpost.io.parquet.inputs import parse, stored_object

DEEP = b"[" * 100_000


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b"\xff", DEEP, b"9" * 5000, b'{"a": 1'])
def test_a_text_that_is_no_object_is_a_value_error(text):
    with pytest.raises(ValueError, match=r".*"):
        parse(text)
    assert stored_object({b"key": text}, b"key") == stored_object({}, b"key") == {}


def test_a_pipe_and_a_folder_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ReadWriteError, match="not a regular file"):
            read_file(path)
    assert read_file(tmp_path / "none") is None
    (tmp_path / "file").write_text(json.dumps({}))
    assert read_file(tmp_path / "file") == b"{}"
