"""Files of rlpost's own: whatever they have, they are read as they were written, or not at all."""

import json
import os

import pytest

from rlpost.errors import ReadWriteError
from rlpost.io.own_files import decode, parse, path_below, read_bytes, seal, stored_object, unseal

DEEP = b"[" * 100_000


def test_what_is_sealed_is_read_as_it_was_and_a_changed_byte_is_found():
    table = {"a": [1, 2.5, None, True, "é\ud800", {"b": float("inf")}], "seal of": {}, "n": 10**30}
    text = seal(table).encode()
    assert "\n" not in text.decode()
    assert unseal(text) == table
    for at in range(len(text)):
        changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
        with pytest.raises(ValueError, match=r".*"):
            unseal(changed)
    for size in range(len(text)):
        with pytest.raises(ValueError, match=r".*"):
            unseal(text[:size])


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b"\xff", DEEP, b"9" * 5000, b'{"a": 1'])
def test_a_text_that_is_no_object_is_a_value_error(text):
    for read in (parse, unseal, lambda text: decode(text, dict[str, int])):
        with pytest.raises(ValueError, match=r".*"):
            read(text)
    assert stored_object({b"key": text}, b"key") == stored_object({}, b"key") == {}


def test_a_value_of_another_type_is_a_value_error():
    assert decode('{"a": 1}', dict[str, int]) == {"a": 1}
    with pytest.raises(ValueError, match="int"):
        decode('{"a": "1"}', dict[str, int])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/a", "../a", "a/../../b", "out/a", "loop/a", "a\0", "a/.."]
)
def test_names_that_lead_out_of_a_folder_are_rejected(tmp_path, name):
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    (folder / "link").symlink_to("in")
    for good in ("a", "in/a", "link/a", "new/a"):
        assert path_below(folder, good) == folder / good
    with pytest.raises((ValueError, OSError)):
        path_below(folder, name)


def test_a_pipe_and_a_folder_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ReadWriteError, match="not a regular file"):
            read_bytes(path)
    assert read_bytes(tmp_path / "none") is None
    (tmp_path / "file").write_text(json.dumps({}))
    assert read_bytes(tmp_path / "file") == b"{}"
