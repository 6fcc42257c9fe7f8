"""Emulators of stores, and a proxy that cuts connections to the S3 server."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from base64 import b64encode
from contextlib import suppress
from datetime import timedelta
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from cloud_runs import ACCOUNT, KEY, create_container, free_port
from s3_server import QuietServer
from store_runs import USER

from rlpost.io import stores


@pytest.fixture
def cut(s3, aws):
    """Start a proxy of the server; a function selects the connections that it cuts."""
    from s3_server import Proxy  # noqa: PLC0415 - moto may be absent

    from rlpost.io import cloud  # noqa: PLC0415

    made = []
    for name, seconds in (("init_backoff", 0.02), ("max_backoff", 0.1)):
        aws.setitem(cloud._BACKOFF, name, timedelta(seconds=seconds))

    def put(rule):
        proxy = Proxy(s3.port, rule)
        made.append(proxy)
        aws.setenv("AWS_ENDPOINT_URL", proxy.url)
        aws.setenv("AWS_MAX_ATTEMPTS", "2")
        return proxy

    yield put
    for proxy in made:
        proxy.close()


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


@pytest.fixture
def web(tmp_path):
    """Files of a folder by HTTP, in ranges.

    Those in `private` need a query with `token=1`, those in `user` the password of USER.
    """

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def send(self):
            path, _, query = self.path.partition("?")
            file = Path(self.translate_path(path))
            if not file.is_file():
                return self.send_error(404)
            login = "Basic " + b64encode(USER.encode()).decode()
            if "/private/" in path and "token=1" not in query.split("&"):
                return self.send_error(403)
            if "/user/" in path and self.headers["Authorization"] != login:
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
