"""Objects in clouds, whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
from datetime import UTC, datetime
from urllib.request import Request, urlopen

ACCOUNT = "devstoreaccount1"  # of Azurite, with the key that its documentation has
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def create_container(url):
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    text = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    text += f"/{ACCOUNT}/{ACCOUNT}/lab\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers |= {"Content-Length": "0", "Content-Type": ""}
    urlopen(Request(f"{url}/lab?restype=container", b"", headers, method="PUT")).close()  # noqa: S310
