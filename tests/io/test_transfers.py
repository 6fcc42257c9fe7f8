"""Transfers: an object appears whole or not at all, in few requests, encrypted if it has to be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from urllib.request import Request, urlopen

import pytest
from runs import long_rollout, rollout, run, save
from s3_server import Proxy, QuietServer

from rlpost.io import stores
from rlpost.io.outputs import OutputFile
from rlpost.io.paths import RemotePath

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(("store", "top"), [("s3", "s3://lab"), ("gcs", "gs://lab"),
                                            ("azure", "az://lab/whole")])  # fmt: skip
def test_an_upload_appears_whole_or_not_at_all(request, store, top):
    server = request.getfixturevalue(store)
    path, aborted = RemotePath(f"{top}/out"), RemotePath(f"{top}/aborted")
    for target, size in ((path, 100), (path, 90_001), (aborted, 90_001), (path, 80_000)):
        with OutputFile(target) as file:
            file.path.write_bytes(bytes(size))
            file.complete()
            before = target.info()
            assert before is None or before.size != size
            if target == path:
                file.publish()
                assert path.stat().st_size == size
    assert not aborted.exists()
    if store == "gcs":  # moto copies nothing by Google's header
        assert (server.keys(), server.uploads()) == (["out"], [])
        return
    moved = RemotePath(f"{top}/moved")
    path.store.move(path.path, moved.path)
    assert (path.exists(), moved.stat().st_size) == (False, 80_000)
    assert store == "azure" or (server.keys(), server.uploads()) == (["moved"], [])


def test_a_small_object_is_read_and_written_in_one_request_each(s3, aws, tmp_path):
    for step in range(12):
        path = save(rollout(), tmp_path / f"{step}.parquet")
        s3.put(f"in/{step}.parquet", path.read_bytes())
    proxy = Proxy(s3.port, lambda _: None)
    aws.setenv("AWS_ENDPOINT_URL", proxy.url)
    assert run("advantages", "s3://lab/in", "s3://lab/out/", "-q").code == 0
    proxy.close()
    methods = [line.split()[0] for line in proxy.requests if ".parquet" in line]
    assert sorted(methods) == ["GET"] * 12 + ["PUT"] * 12
    assert len(s3.keys()) == 24


def test_a_large_object_is_copied_in_parts(s3, aws):
    aws.setattr(stores, "_COPY_BYTES", 6 << 20)
    data = os.urandom(13 << 20)
    path = RemotePath(s3.put("d/large", data))
    path.store.move(path.path, "lab/moved")
    assert s3.keys() == ["moved"]
    assert s3.get("moved") == data


@pytest.mark.parametrize("size", [1000, 6 << 20])
def test_all_objects_are_encrypted_as_the_environment_wants(s3, aws, size):
    aws.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    aws.setenv("AWS_SSE_KMS_KEY_ID", "key-of-the-lab")
    path = RemotePath("s3://lab/new")
    with OutputFile(path) as file:
        file.write(0, b"x" * size)
        file.complete()
        file.publish()
    for key in ("new", "moved"):
        made = s3.client.head_object(Bucket="lab", Key=key)
        assert (made["ServerSideEncryption"], made["SSEKMSKeyId"]) == ("aws:kms", "key-of-the-lab")
        if key == "new":
            path.store.move(path.path, "lab/moved")


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
