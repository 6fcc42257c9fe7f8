"""Azure, Google Cloud Storage and HTTP servers by obstore, and where S3's settings come from.

Azurite is Microsoft's emulator, which `.ci/run` installs. obstore uses Google's XML API, which is
that of S3 with other headers, so its requests go to moto's S3.
"""

from __future__ import annotations

import json
import os
import sys

import pyarrow.parquet as pq
import pytest
from runs import long_rollout, rollout, run, save

from rlpost.io import stores
from rlpost.io.paths import RemotePath, list_files

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("store", "top"),
    [
        ("s3", "s3://lab/d"), ("gcs", "gs://lab/d"), ("azure", "az://lab/az"),
        ("azure", "abfs://lab/abfs"), ("azure", "abfss://lab/abfss"),
    ],
)  # fmt: skip
def test_runs_that_read_and_write_a_store_leave_the_bytes_of_a_local_run(
    request, tmp_path, store, top
):
    server = request.getfixturevalue(store)
    source = save(long_rollout(), tmp_path / "in.parquet", 90)
    expected = tmp_path / "expected.parquet"
    assert run("advantages", source, expected, "-q").code == 0
    for out, given in (("a.parquet", source), ("b/step=1/b.parquet", source)):
        assert run("advantages", given, f"{top}/{out}", "-q").code == 0
    again, nowhere = f"{top}/a.parquet", f"{top.partition(':')[0]}://nowhere/out.parquet"
    assert "exists already" in run("advantages", source, again, "-q").err
    assert "same file" in run("advantages", again, again, "-q", "--overwrite").err
    assert "the bucket does not exist" in run("advantages", source, nowhere, "-q").err
    for number, path in enumerate((again, f"{top}/b/step=*/*.parquet", f"{top}/b")):
        near = tmp_path / f"near{number}"
        assert run("advantages", path, near, "-q", "--replace").code == 0, path
        assert pq.read_table(near).num_rows == 400
    copy = tmp_path / "copy.parquet"
    RemotePath(again).store.fetch(RemotePath(again).path, copy)
    assert copy.read_bytes() == expected.read_bytes()
    assert [str(relative) for _, relative in list_files(RemotePath(top))] == [
        "a.parquet",
        "b/step=1/b.parquet",
    ]
    assert store == "azure" or server.uploads() == []


@pytest.mark.parametrize(
    ("url", "variables", "text"),
    [
        ("az://lab/in.parquet", {}, "az://lab: no storage account: set AZURE_STORAGE_ACCOUNT_NAME"),
        (
            "gs://lab/in.parquet",
            {"GOOGLE_APPLICATION_CREDENTIALS": "/absent.json"},
            "gs://lab: GOOGLE_APPLICATION_CREDENTIALS=/absent.json: the file does not exist",
        ),
    ],
)
def test_settings_that_lack_something_are_errors(url, variables, text, monkeypatch, tmp_path):
    for name in os.environ:
        if name.startswith(("AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ran = run("advantages", url, tmp_path / "out.parquet", "-q")
    assert ran.code == 4
    assert ran.err.startswith(f"error: {text}")


@pytest.mark.parametrize("kind", ["external_account", "impersonated_service_account"])
def test_google_credentials_that_obstore_cannot_read_name_what_they_need(
    monkeypatch, tmp_path, kind
):
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"type": kind}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setitem(sys.modules, "google", None)
    stores.object_store.cache_clear()
    ran = run("advantages", "gs://lab/in.parquet", tmp_path / "out.parquet", "-q")
    assert ran.code == 5
    assert ran.err.startswith(f"error: gs://lab: {file} has credentials of type {kind}, which need")
    assert ran.err.endswith("pip install google-auth requests\n")


# HTTP


def test_files_of_http_servers_are_read(web, tmp_path):
    folder, url = web
    table = rollout()
    save(table, folder / "a b.parquet")
    (folder / "private").mkdir()
    save(table, folder / "private" / "in.parquet")
    near = tmp_path / "near.parquet"
    for path in ("a%20b.parquet", "private/in.parquet?token=1"):
        ran = run("advantages", f"{url}/{path}", near, "-q", "--overwrite")
        assert ran.code == 0, ran.err
        assert pq.read_table(near).num_rows == 12
    assert RemotePath(f"{url}/private/in.parquet?token=1").suffix == ".parquet"
    ran = run("inspect", f"{url}/private/in.parquet")
    assert ran.code == 4
    assert "cannot be accessed: access denied" in ran.err
    ran = run("inspect", f"{url}/gone.parquet")
    absent = "no such object, and no objects below it"
    assert (ran.code, ran.err) == (4, f"error: {url}/gone.parquet: {absent}\n")
    ran = run("inspect", f"{url}/*.parquet")
    assert "HTTP servers have no listings; pass the URLs of the files" in ran.err


# S3's settings


def test_a_bucket_in_another_region_is_found(s3, aws, tmp_path):
    aws.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    url = s3.put("in.parquet", save(rollout(), tmp_path / "in.parquet").read_bytes())
    assert run("advantages", url, "s3://lab/out.parquet", "-q").code == 0
    assert stores.object_store("s3").s3.client("lab").meta.region_name == "us-east-1"


KEYS = "aws_access_key_id = key\naws_secret_access_key = secret\n"


@pytest.mark.parametrize("kind", ["default profile", "profile", "process", "web identity"])
def test_other_sources_of_credentials_are_read(s3, aws, tmp_path, kind):
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    config = tmp_path / "aws-config"
    if kind == "default profile":
        (tmp_path / "aws-credentials").write_text(f"[default]\n{KEYS}")
    elif kind == "profile":
        aws.delenv("AWS_ENDPOINT_URL")
        config.write_text(f"[profile lab]\nendpoint_url = {s3.url}\nregion = eu-west-1\n{KEYS}")
        aws.setenv("AWS_PROFILE", "lab")
    elif kind == "process":
        keys = '{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret"}'
        (tmp_path / "keys.json").write_text(keys)
        config.write_text(f"[default]\ncredential_process = cat {tmp_path / 'keys.json'}\n")
    else:
        (tmp_path / "token").write_text("token")
        aws.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        aws.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/lab")
        aws.setenv("AWS_ENDPOINT_URL_STS", s3.url)
    url = s3.put("in.parquet", save(rollout(), tmp_path / "in.parquet").read_bytes())
    ran = run("advantages", url, "s3://lab/out.parquet", "-q")
    assert ran.code == 0, ran.err
    assert s3.keys() == ["in.parquet", "out.parquet"]


@pytest.mark.usefixtures("s3")
def test_keys_that_obstore_cannot_name_are_errors(tmp_path):
    ran = run("advantages", "s3://lab/a//b.parquet", tmp_path / "out.parquet", "-q")
    assert ran.code == 4
    assert "contained empty path segment" in ran.err
