"""Locations with secrets: no output of a command has a password or the query of a URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from commands_on_files import commands_on
from hypothesis import given
from hypothesis import strategies as st
from runs import rollout, run, save
from store_runs import USER

import rlpost
from rlpost import redaction
from rlpost.errors import RlpostError
from rlpost.io.paths import RemotePath, parse_path

PRESIGNED = (
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20260101&"
    "X-Amz-Signature=fe5f80f77d5fa3beca038a248ff027d0&sv=2024-11-04&sig=c2lnbmF0dXJl%3D&token=1"
)
SECRETS = (
    "AKIAIOSFODNN7EXAMPLE", "fe5f80f77d5fa3beca038a248ff027d0", "c2lnbmF0dXJl", "correct-horse",
    "token=1",
)  # fmt: skip


@pytest.fixture
def signed(web):
    """Return presigned URLs of an enriched file and of a dump, and one with a password."""
    folder, url = web
    for name in ("private", "user"):
        (folder / name).mkdir()
    plain = save(rollout(), folder / "user" / "plain.parquet")
    enriched = folder / "private" / "enriched.parquet"
    assert run("advantages", plain, enriched, "-q").code == 0
    lines = [json.dumps({"input": "a", "output": "b", "score": i % 2, "step": 1}) for i in range(4)]
    (folder / "private" / "dump.jsonl").write_text("\n".join(lines))
    private = f"{url}/private"
    return (
        f"{private}/enriched.parquet?{PRESIGNED}",
        f"{private}/dump.jsonl?{PRESIGNED}",
        f"{url.replace('://', f'://{USER}@')}/user/plain.parquet",
    )


def assert_no_secrets(where, text):
    for secret in SECRETS:
        assert secret not in text, (where, secret)


def errors(enriched, plain, out):
    """Return commands whose errors name URLs, and the exit code of each."""
    return [
        (("inspect", enriched.replace("enriched", "gone")), 4),
        (("inspect", enriched.replace("token=1", "token=2")), 4),
        (("inspect", plain.replace("correct-", "wrong-correct-")), 4),
        (("advantages", enriched, plain, "-q"), 2),
        (("advantages", enriched, out / "x.parquet", "--map", "reward=missing"), 3),
        (("advantages", enriched), 2),
        (("verify", plain), 3),
        (("list", "estimators", enriched), 2),
        (("advantages", plain, out / "y.parquet", "--estimator", plain), 2),
        (("report", enriched, plain), 2),
        (("config", "show", "--config", enriched), 4),
        (("loss", enriched, "--log", plain), 4),
        ((enriched,), 0),
    ]


def test_no_screen_file_or_error_has_the_secrets_of_a_url(signed, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for words, code in [*commands_on(*signed, out), *errors(signed[0], signed[2], out)]:
        ran = run(*words)
        assert ran.code == code, (words, ran.err)
        assert_no_secrets(words, ran.out + ran.err)
    written = [path for path in out.rglob("*") if path.is_file()]
    assert len(written) >= 7
    for path in written:
        assert_no_secrets(path, path.read_bytes().decode("latin-1"))
        if path.suffix == ".parquet":
            metadata = pq.read_metadata(path).metadata or {}
            assert_no_secrets(path, str(metadata))
    source = json.loads(pq.read_metadata(out / "u.parquet").metadata[b"rlpost.source"])
    assert source["file"].endswith("/private/enriched.parquet?***")


def test_an_input_is_the_same_by_another_signature(signed, tmp_path):
    words = [tmp_path / "out.parquet", "--skip-existing", "--replace", "--summary-json", "-", "-q"]
    for url, written in ((signed[0], 1), (signed[0].replace("fe5f", "0000"), 0)):
        found = json.loads(run("advantages", url, *words).out)
        assert found["skip_existing"]["written"] == written


def test_python_results_name_urls_without_secrets(signed, tmp_path):
    enriched, dump, plain = signed
    results = [
        rlpost.inspect([enriched]).to_dict(),
        dict(rlpost.advantages(plain, tmp_path / "a.parquet")),
        dict(rlpost.compare([enriched, enriched])),
        dict(rlpost.replay(enriched, rlpost.preset("verl"))),
        dict(rlpost.convert(dump, tmp_path / "c.parquet")),
    ]
    for one in results:
        assert_no_secrets("result", json.dumps(one, default=str))
    with pytest.raises(RlpostError) as failed:
        rlpost.load(enriched.replace("enriched", "gone"), batch_tokens=1)
    assert_no_secrets("error", repr(failed.value))
    assert_no_secrets("path", repr(parse_path(enriched)) + str([parse_path(plain)]))


@pytest.mark.nightly
def test_a_traceback_has_no_secrets(signed):
    ran = subprocess.run(
        [sys.executable, "-m", "rlpost", "inspect", signed[0].replace("token=1", "x=1"), "--debug"],
        capture_output=True, text=True, env=os.environ, check=False,
    )  # fmt: skip
    assert "Traceback" in ran.stderr
    assert "/private/enriched.parquet" in ran.stderr
    assert_no_secrets("traceback", ran.stderr + ran.stdout)


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("https://host/a.parquet?sig=x/y=", "https://host/a.parquet?***"),
        ("https://me:pw@host:80/a.parquet", "https://***@host:80/a.parquet"),
        ("https://token@host/a", "https://***@host/a"),
        ("https://me:ps/w?rd@host/a", "https://***@host/a"),
        ("https://me:pw@[::1]:80/a?b#c", "https://***@[::1]:80/a?***"),
        ("https://host/a#access_token=x", "https://host/a#***"),
        ("HTTPS://me:pw@host/a", "HTTPS://***@host/a"),
        ("zip://a.parquet::https://me:pw@host/b.zip?sig=x",
         "zip://a.parquet::https://***@host/b.zip?***"),
        ("simplecache::https://me:pw@host/b?x", "simplecache::https://***@host/b?***"),
        ("s3://key:secret@lab/a.parquet", "s3://***@lab/a.parquet"),
        ("az://lab/a.parquet?sv=2024&sig=x", "az://lab/a.parquet?***"),
        ("abfss://lab@account.dfs.core.windows.net/a", "abfss://lab@account.dfs.core.windows.net/a"),
        ("s3://lab/step=?/part-?.parquet", "s3://lab/step=?/part-?.parquet"),
        ("s3://lab/a#b.parquet", "s3://lab/a#b.parquet"),
        ("s3:/key:secret@lab/a", "s3:/***@lab/a"),
        ("//user:pw@host/a", "//***@host/a"),
        ("https://host/a;jsessionid=1A2B?x=1", "https://host/a;***"),
        ("s3%3A%2F%2Fkey%3Asecret%40lab%2Fa", "s3%3A%2F%2F***%40lab%2Fa"),
        ("https://user%3Apw%40host/a", "https://***%40host/a"),
        ("https%3A%2F%2Fhost%2Fa%3Fsig%3Dabc", "https%3A%2F%2Fhost%2Fa%3F***"),
        ("""s3://key:se"cr'et@lab/a""", "s3://***@lab/a"),
        ("s3://AKIA:12/abc+d@lab/a", "s3://***@lab/a"),
        ("s3://localhost:9000/lab/a", "s3://localhost:9000/lab/a"),
        ("//host/a@b", "//host/a@b"),
        ("hf://datasets/org/name@main/a.parquet", "hf://datasets/org/name@main/a.parquet"),
    ],
)  # fmt: skip
def test_what_is_printed_of_a_url(url, printed):
    assert redaction.public_url(url) == printed
    assert redaction.public_url(printed) == printed
    assert redaction.without_secrets(f"({url}): no") == f"({printed}): no"


FORMS = (
    "s3://KEYQQ:SECQQ@lab/x.parquet", "s3:/KEYQQ:SEC/QQ@lab/x.parquet", "//u:pwQQ@127.0.0.1/x.json",
    "https://127.0.0.1:9/x;jsessionid=QQABC", "http://u%3ApwQQ%40127.0.0.1:9/x",
    """s3://KEYQQ:SE"C'QQ@lab/x""",
)  # fmt: skip
TAKE = [
    ("inspect", "{}"), ("advantages", "in.parquet", "{}"), ("verify", "{}"),
    ("replay", "in.parquet", "--recipe", "{}"), ("report", "in.parquet", "{}"),
    ("loss", "in.parquet", "--loss", "{}"), ("convert", "{}", "out.parquet"),
    *(("advantages", "in.parquet", "out.parquet", option, "{}") for option in (
        "--state", "--config", "--estimator", "--summary-json")),
]  # fmt: skip


@pytest.mark.parametrize("words", TAKE, ids=" ".join)
def test_every_option_hides_the_secrets_of_every_form(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(rollout(), tmp_path / "in.parquet")
    for form in FORMS:
        ran = run(*(word.format(form) for word in words))
        assert "QQ" not in ran.out + ran.err, ran.err


WORD = st.text("abcXYZ019-._~", min_size=6, max_size=20).map(lambda word: f"Q{word}Q")


@given(
    st.sampled_from(["http", "https", "ftp", "s3", "gs", "webhdfs"]),
    WORD, WORD, WORD, st.sampled_from([" ", "'", ") ", '"', "\n", ": "]),
)  # fmt: skip
def test_any_password_and_parameter_is_hidden_in_any_text(scheme, user, password, value, end):
    url = f"{scheme}://{user}:{password}@host/path/file.parquet?one={value}&two={value}"
    printed = redaction.without_secrets(f"before {url}{end}after")
    for secret in (user, password, value):
        assert secret not in printed
    assert printed.startswith(f"before {scheme}://***@host/path/file.parquet?***")
    assert printed.endswith("after")


def test_the_text_of_a_client_has_neither_user_nor_query():
    path = RemotePath("https://me:correct-horse@host/a?X-Amz-Signature=ab%2Fcd&x=1")
    text = "url: /a?X-Amz-Signature=ab/cd&x=1 for me:correct-horse"
    assert path.without_secrets(text) == "url: /a?*** for ***"
