"""An S3 server on loopback, and a TCP proxy that cuts connections; for tests of remote paths."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import boto3

if TYPE_CHECKING:
    from collections.abc import Callable

SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_ALL = 1 << 62
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}


class QuietServer(ThreadingHTTPServer):
    """A server whose requests may fail after their test, in silence."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing."""


class Server:
    """moto's S3, in its own process; it accepts parts of any size."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"S3_UPLOAD_PART_MIN_SIZE": "1", "PATH": "/usr/bin:/bin"},
        )
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = boto3.client("s3", endpoint_url=self.url, **KEYS)

    def close(self) -> None:
        self.client.close()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def reset(self) -> None:
        """Reset to an empty bucket `lab`; any credentials are valid."""
        self._post("reset")
        self.check_credentials(after="1000000000")
        self.client.create_bucket(Bucket="lab")

    def check_credentials(self, after: str = "0") -> None:
        """Check credentials after so many requests: none are valid then."""
        self._post("reset-auth", after.encode())

    def _post(self, what: str, body: bytes = b"") -> None:
        plain = {"Content-Type": "text/plain"}
        urlopen(Request(f"{self.url}/moto-api/{what}", body, plain)).close()  # noqa: S310

    def put(self, key: str, data: bytes) -> str:
        self.client.put_object(Bucket="lab", Key=key, Body=data)
        return f"s3://lab/{key}"

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket="lab", Key=key)["Body"].read()

    def keys(self) -> list[str]:
        objects = self.client.list_objects_v2(Bucket="lab").get("Contents", [])
        return [item["Key"] for item in objects]

    def uploads(self) -> list[str]:
        """List multipart uploads that are neither completed nor aborted."""
        return self.client.list_multipart_uploads(Bucket="lab").get("Uploads", [])


class Proxy:
    """Forwards connections to a port, and cuts some of them.

    Args:
        port: the port to forward to.
        cut: returns for a request's head after how many bytes of the request and of the response
            to cut the connection; None to not cut it.
    """

    def __init__(self, port: int, cut: Callable[[str], tuple[int, int] | None]) -> None:
        self._port, self._cut = port, cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self.requests: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Forward one connection, which the server closes after one request."""
        try:
            server = socket.create_connection(("127.0.0.1", self._port))
        except OSError:  # a client may repeat requests in the background after its test
            client.close()
            return
        with client, server, suppress(OSError):
            first = client.recv(1 << 16)
            if not first:  # a client may close a connection that it never used
                return
            head = first.partition(b"\r\n\r\n")[0].decode()
            self.requests.append(head.splitlines()[0])
            limits = self._cut(head) or (_ALL, _ALL)
            up = threading.Thread(
                target=self._pass, args=(client, server, limits[0], first), daemon=True
            )
            up.start()
            self._pass(server, client, limits[1], b"")
            for end in (client, server):
                end.shutdown(socket.SHUT_RDWR)
            up.join()

    def _pass(self, source: socket.socket, target: socket.socket, limit: int, data: bytes) -> None:
        with suppress(OSError):
            data = data or source.recv(1 << 14)
            while data:
                target.sendall(data[:limit])
                limit -= len(data)
                if limit <= 0:
                    self.cuts += 1
                    for end in (source, target):  # a reset, as by a router that lost its state
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        end.shutdown(socket.SHUT_RDWR)
                    return
                data = source.recv(1 << 14)
