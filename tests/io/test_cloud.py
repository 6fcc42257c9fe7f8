"""Azure, Google Cloud Storage and HTTP servers by obstore, and where S3's settings come from.

Azurite is Microsoft's emulator, which `.ci/run` installs. obstore uses Google's XML API, which is
that of S3 with other headers, so its requests go to moto's S3.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from urllib.request import Request, urlopen

import fsspec
import pyarrow.parquet as pq
import pytest
from runs import long_rollout, rollout, run, save
from s3_server import Proxy, QuietServer

from rlpost.errors import ReadWriteError
from rlpost.io import cloud, stores, transfers, uploads
from rlpost.io.paths import RemotePath, glob_files, list_files

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
ACCOUNT = "devstoreaccount1"  # of Azurite, with the key that its documentation has
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def azurite():
    """Azurite on loopback, with an empty container `lab`; its URL."""
    own = Path(__file__).parents[2] / ".azurite" / "node_modules" / ".bin" / "azurite-blob"
    program = shutil.which("azurite-blob", path=f"{own.parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("Azurite is not installed: npm install --prefix .azurite azurite")
    port = free_port()
    words = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    process = subprocess.Popen(
        [program, *words, "--blobHost", "127.0.0.1", "--blobPort", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError):
            create_container(url)
            break
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yield url
    process.terminate()
    process.wait()


def create_container(url):
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    text = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    text += f"/{ACCOUNT}/{ACCOUNT}/lab\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers |= {"Content-Length": "0", "Content-Type": ""}
    urlopen(Request(f"{url}/lab?restype=container", b"", headers, method="PUT")).close()  # noqa: S310


@pytest.fixture
def azure(azurite, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    text = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={azurite};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{text}")
    stores.object_store.cache_clear()
    yield monkeypatch
    stores.object_store.cache_clear()


@pytest.fixture
def gcs(s3, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", s3.url)
    return s3


def round_trip(top, tmp_path):
    """Hold runs that read and write below a URL against a run from disk to disk."""
    source = save(long_rollout(), tmp_path / "in.parquet", 90)
    expected = tmp_path / "expected.parquet"
    assert run("advantages", source, expected, "-q").code == 0
    for out, given in (("a.parquet", source), ("b/step=1/b.parquet", source)):
        assert run("advantages", given, f"{top}/{out}", "-q").code == 0
    again = f"{top}/a.parquet"
    assert "exists already" in run("advantages", source, again, "-q").err
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


@pytest.mark.usefixtures("azure", "small_steps")
@pytest.mark.parametrize("scheme", ["az", "abfs", "abfss"])
def test_a_run_on_azure_writes_the_bytes_of_a_local_run(tmp_path, scheme):
    round_trip(f"{scheme}://lab/{scheme}", tmp_path)


@pytest.mark.usefixtures("azure", "small_steps")
def test_an_upload_to_azure_appears_whole_or_not_at_all(tmp_path):
    whole_or_not("az://lab/whole")
    moved = RemotePath("az://lab/whole/moved")
    path = RemotePath("az://lab/whole/out")
    path.store.move(path.path, moved.path)
    assert (path.exists(), moved.stat().st_size) == (False, 90_001)
    source = save(rollout(), tmp_path / "in.parquet")
    ran = run("advantages", source, "az://nowhere/out.parquet", "-q")
    assert (ran.code, ran.err) == (
        4,
        "rlpost: az://nowhere/out.parquet: cannot be written: the bucket does not exist\n",
    )


@pytest.mark.usefixtures("azure")
def test_a_wrong_key_for_azure_is_an_error(azurite, monkeypatch, tmp_path):
    text = f"AccountName={ACCOUNT};AccountKey={'A' * 86}==;BlobEndpoint={azurite};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    ran = run("advantages", "az://lab/in.parquet", tmp_path / "out.parquet", "-q")
    assert ran.code == 4
    assert ran.err.startswith("rlpost: az://lab/in.parquet: cannot be accessed: access denied: ")
    assert "AZURE_STORAGE_CONNECTION_STRING" in ran.err
    assert ran.err.count("\n") == 1


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
    assert ran.err.startswith(f"rlpost: {text}")


def whole_or_not(top):
    path = RemotePath(f"{top}/out")
    for size in (100, 90_001, 80_000):
        begun = uploads.stage_file(path)
        begun.path.write_bytes(bytes(size))
        begun.complete()
        before = path.info()
        assert before is None or before.size != size
        begun.publish()
        assert path.stat().st_size == size
    begun = uploads.stage_file(RemotePath(f"{top}/aborted"))
    begun.path.write_bytes(bytes(90_001))
    begun.complete()
    begun.discard()
    begun = uploads.stage_file(path)
    begun.path.write_bytes(bytes(90_001))
    begun.complete()
    begun.publish()
    assert not RemotePath(f"{top}/aborted").exists()


@pytest.mark.usefixtures("small_steps")
def test_a_run_on_google_cloud_storage_writes_the_bytes_of_a_local_run(gcs, tmp_path):
    round_trip("gs://lab/d", tmp_path)
    assert gcs.uploads() == []


@pytest.mark.usefixtures("small_steps")
def test_an_upload_to_google_appears_whole_or_not_at_all(gcs):
    whole_or_not("gs://lab")
    assert gcs.keys() == ["out"]
    assert gcs.uploads() == []


@pytest.mark.usefixtures("small_steps")
def test_a_failed_upload_to_google_leaves_nothing(gcs, monkeypatch):
    proxy = Proxy(gcs.port, lambda head: (500, 1 << 60) if "partNumber" in head else None)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    begun = uploads.stage_file(RemotePath("gs://lab/out"))
    begun.path.write_bytes(bytes(90_000))

    def publish():
        begun.complete()
        begun.publish()

    with pytest.raises(ReadWriteError, match=r"^gs://lab/out: cannot be written: the connection"):
        publish()
    begun.discard()
    proxy.close()
    assert gcs.keys() == []


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
    assert ran.err.startswith(
        f"rlpost: gs://lab: {file} has credentials of type {kind}, which need"
    )
    assert ran.err.endswith("pip install google-auth requests\n")


# HTTP


@pytest.fixture
def web(tmp_path):
    """Files of a folder by HTTP, in ranges; only with `?token=1` if they are in `private`."""

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def send(self):
            path, _, query = self.path.partition("?")
            file = Path(self.translate_path(path))
            if not file.is_file():
                return self.send_error(404)
            if "/private/" in path and query != "token=1":
                return self.send_error(403)
            data = file.read_bytes()
            begin, end = 0, len(data)
            if span := self.headers["Range"]:
                first, last = span.removeprefix("bytes=").split("-")
                begin, end = int(first), min(int(last) + 1, len(data))
            self.send_response(206 if span else 200)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
            self.send_header("Content-Length", str(end - begin))
            self.send_header("Last-Modified", self.date_time_string(0))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[begin:end])
            return None

    Handler.do_GET = Handler.do_HEAD = Handler.send
    folder = tmp_path / "web"
    folder.mkdir()
    httpd = QuietServer(("127.0.0.1", 0), lambda *a: Handler(*a, directory=folder))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    stores.object_store.cache_clear()
    yield folder, f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


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
    assert (ran.code, ran.err) == (4, f"rlpost: {url}/gone.parquet: {absent}\n")
    ran = run("inspect", f"{url}/*.parquet")
    assert "HTTP servers have no listings; pass the URLs of the files" in ran.err


# S3's settings


def test_a_bucket_in_another_region_is_found(s3, aws, tmp_path):
    aws.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    url = s3.put("in.parquet", save(rollout(), tmp_path / "in.parquet").read_bytes())
    assert run("advantages", url, "s3://lab/out.parquet", "-q").code == 0
    assert stores.object_store("s3").s3.client("lab").meta.region_name == "us-east-1"


def test_a_public_bucket_is_read_without_credentials(s3, aws, tmp_path):
    url = s3.put("in.parquet", save(rollout(), tmp_path / "in.parquet").read_bytes())
    s3.client.put_object_acl(Bucket="lab", Key="in.parquet", ACL="public-read")
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    aws.setenv("AWS_SKIP_SIGNATURE", "true")
    assert run("advantages", url, tmp_path / "out.parquet", "-q").code == 0


@pytest.mark.usefixtures("s3")
def test_a_profile_that_does_not_exist_is_an_error(aws, tmp_path):
    aws.setenv("AWS_PROFILE", "gone")
    ran = run("advantages", "s3://lab/in.parquet", tmp_path / "out.parquet", "-q")
    reason = "cannot be accessed: The config profile (gone) could not be found"
    assert (ran.code, ran.err) == (4, f"rlpost: s3://lab/in.parquet: {reason}\n")


@pytest.mark.parametrize("kind", ["default profile", "process", "web identity"])
def test_other_sources_of_credentials_are_read(s3, aws, tmp_path, kind):
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    config = tmp_path / "aws-config"
    if kind == "default profile":
        text = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
        (tmp_path / "aws-credentials").write_text(text)
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


def test_settings_of_fsspec_are_read_or_named(s3, aws, tmp_path, caplog):
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        aws.delenv(name)
    caplog.set_level("WARNING", "rlpost")
    settings = {"endpoint_url": s3.url, "key": "key", "secret": "secret", "use_ssl": False}
    aws.setitem(fsspec.config.conf, "s3", settings)
    url = s3.put("in.parquet", save(rollout(), tmp_path / "in.parquet").read_bytes())
    assert run("advantages", url, tmp_path / "out.parquet").code == 0
    (line,) = [one.getMessage() for one in caplog.records if one.name == "rlpost"]
    assert line.startswith("rlpost: s3:// has the settings use_ssl in fsspec's configuration")


def test_a_small_object_is_read_and_written_in_one_request_each(s3, aws, tmp_path):
    for step in range(12):
        path = save(rollout(), tmp_path / f"{step}.parquet")
        s3.put(f"in/{step}.parquet", path.read_bytes())
    proxy = Proxy(s3.port, lambda _: None)
    aws.setenv("AWS_ENDPOINT_URL", proxy.url)
    aws.setattr(transfers.Multipart, "_writable", {"lab"})  # as after the first object
    assert run("advantages", "s3://lab/in", "s3://lab/out/", "-q").code == 0
    proxy.close()
    methods = [line.split()[0] for line in proxy.requests if ".parquet" in line]
    assert sorted(methods) == ["GET"] * 12 + ["PUT"] * 12
    assert len(s3.keys()) == 24


def test_a_large_object_is_copied_in_parts(s3, aws):
    aws.setattr(cloud, "_COPY_BYTES", 6 << 20)
    data = os.urandom(13 << 20)
    path = RemotePath(s3.put("d/large", data))
    path.store.move(path.path, "lab/moved")
    assert s3.keys() == ["moved"]
    assert s3.get("moved") == data


@pytest.mark.parametrize("size", [1000, 6 << 20])
def test_all_objects_are_encrypted_as_the_environment_wants(s3, aws, size):
    aws.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    aws.setenv("AWS_SSE_KMS_KEY_ID", "key-of-the-lab")
    aws.setattr(transfers.Multipart, "_writable", {"lab"})  # as after the first object
    path = RemotePath("s3://lab/new")
    transfer = transfers.transfer_to(path)
    transfer.send(iter([b"x" * size]), size)
    transfer.finish()
    for key in ("new", "moved"):
        made = s3.client.head_object(Bucket="lab", Key=key)
        assert (made["ServerSideEncryption"], made["SSEKMSKeyId"]) == ("aws:kms", "key-of-the-lab")
        if key == "new":
            path.store.move(path.path, "lab/moved")


def test_globs_list_folders_that_consoles_show(s3):
    for key in ("d/", "d/a/", "d/a/x.parquet", "d/b/", "d/empty.parquet", "d/é +%20#.parquet"):
        s3.put(key, b"x" if "x" in key else b"")
    top = RemotePath("s3://lab/d")
    names = ["a/x.parquet", "empty.parquet", "é +%20#.parquet"]
    assert [str(relative) for _, relative in list_files(top)] == names
    assert [file.name for file in glob_files(RemotePath("s3://lab/d/*.parquet"))] == names[1:]


@pytest.mark.usefixtures("s3")
def test_keys_that_obstore_cannot_name_are_errors(tmp_path):
    ran = run("advantages", "s3://lab/a//b.parquet", tmp_path / "out.parquet", "-q")
    assert ran.code == 4
    assert "contained empty path segment" in ran.err


# Signals


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_an_upload_leaves_no_upload(s3, aws, tmp_path, signal_):
    """The parts are sent slowly: the server's responses to them never come."""
    source = save(long_rollout(), tmp_path / "in.parquet", 90)
    proxy = Proxy(s3.port, lambda _: None)
    gate = Gate(proxy)
    aws.setenv("AWS_ENDPOINT_URL", gate.url)
    code = (
        "import sys; from rlpost.io import transfers; transfers.PART_BYTES = 20_000;"
        "from rlpost.cli.main import leave; sys.exit(leave())"
    )
    words = [sys.executable, "-c", code, "advantages", str(source), "s3://lab/out.parquet", "-q"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not gate.held:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert s3.uploads()
    process.send_signal(signal_)
    assert process.wait(20) in (128 + signal_, 130)
    assert s3.uploads() == []
    assert s3.keys() == []


class Gate:
    """Forwards requests to a server; those with parts of uploads get no response."""

    def __init__(self, proxy):
        self.held = 0
        target = proxy.url
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def forward(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if "partNumber" in self.path:
                    gate.held += 1
                    time.sleep(60)
                headers = {name: self.headers[name] for name in self.headers if name != "Host"}
                request = Request(  # noqa: S310
                    target + self.path, body or None, headers, method=self.command
                )
                try:
                    response = urlopen(request)  # noqa: S310
                except OSError as error:
                    response = error
                data = response.read()
                self.send_response(response.status)
                for name, value in response.headers.items():
                    if name.lower() not in ("content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        for verb in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            setattr(Handler, f"do_{verb}", Handler.forward)
        httpd = QuietServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{httpd.server_port}"
