"""Buckets of S3, Google Cloud Storage, Azure and HTTP servers: credentials, endpoints and retries.

obstore reads the environment, but no AWS profiles, no connection strings, and not all of Google's
credential files. So botocore's session supplies region, endpoint and credentials of S3, in which
order and from which source is then as everywhere: environment, profile, SSO, web identity,
container, instance. Its client also asks for a bucket's region, and lists and aborts uploads, for
which obstore has no function.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from rlpost.errors import ReadWriteError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection

ATTEMPTS = 9  # of a request, in half a minute; AWS_MAX_ATTEMPTS sets others
_BACKOFF = {  # each pause is a random number of seconds between the first and 3 times the last one
    "init_backoff": timedelta(seconds=0.5),
    "max_backoff": timedelta(seconds=10),
    "base": 3,
}
CONNECT_SECONDS, READ_SECONDS, REQUEST_SECONDS = 10.0, 30.0, 900.0
_VALID = timedelta(minutes=5)  # botocore refreshes credentials before they expire
_GOOGLE_KEYS = ("SERVICE_ACCOUNT", "SERVICE_ACCOUNT_PATH", "SERVICE_ACCOUNT_KEY", "BEARER_TOKEN")


def attempts() -> int:
    """Return how often a request is sent until it succeeds."""
    return max(int(os.environ.get("AWS_MAX_ATTEMPTS") or ATTEMPTS), 1)


def _options(*, http: bool) -> dict[str, Any]:
    """Return obstore's options for requests and retries."""
    client = {
        "allow_http": http,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "timeout": timedelta(seconds=REQUEST_SECONDS),
    }
    retry = {"max_retries": attempts() - 1, "backoff": _BACKOFF}
    return {"client_options": client, "retry_config": retry}


def _true(text: object) -> bool:
    return str(text).lower() in ("1", "true", "yes")


class S3:
    """S3's session and clients, one per bucket because each bucket has its region."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._opened: Any = None

    def _session(self) -> Any:
        """Return botocore's session; raises its error for a profile that does not exist."""
        if self._opened is None:
            from botocore.session import Session  # noqa: PLC0415 - not needed for local files

            # botocore's warnings stay off stderr: rlpost's errors have what matters
            for name in ("botocore", "urllib3"):
                logging.getLogger(name).addHandler(logging.NullHandler())
            self._opened = Session()
        return self._opened

    @property
    def _anonymous(self) -> bool:
        return _true(os.environ.get("AWS_SKIP_SIGNATURE"))

    def client(self, bucket: str) -> Any:
        """Return botocore's client for a bucket, in the bucket's region."""
        with self._lock:
            if bucket not in self._clients:
                client = self._new_client(None)
                region = self._region(client, bucket)
                if region not in (None, client.meta.region_name):
                    client = self._new_client(region)
                self._clients[bucket] = client
            return self._clients[bucket]

    def _new_client(self, region: str | None) -> Any:
        from botocore import UNSIGNED  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        config = Config(
            signature_version=UNSIGNED if self._anonymous else None,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"total_max_attempts": attempts(), "mode": "standard"},
        )
        return self._session().create_client("s3", region_name=region, config=config)

    def _region(self, client: Any, bucket: str) -> str | None:
        """Return the region that S3 names for a bucket, also if it denies access; None if none."""
        from botocore.exceptions import ClientError  # noqa: PLC0415

        try:
            response = client.head_bucket(Bucket=bucket)
        except ClientError as error:
            response = error.response
        headers: dict[str, str] = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return headers.get("x-amz-bucket-region")

    def open(self, _: str, bucket: str) -> Any:
        """Return obstore's store of a bucket."""
        from obstore.store import S3Store  # noqa: PLC0415

        client = self.client(bucket)
        endpoint = str(client.meta.endpoint_url)
        style = (client.meta.config.s3 or {}).get("addressing_style")
        if style == "virtual":
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{bucket}.{host}"
        return S3Store(
            bucket,
            endpoint=endpoint,
            region=client.meta.region_name or "us-east-1",
            virtual_hosted_style_request=style == "virtual",
            skip_signature=self._anonymous,
            credential_provider=None if self._anonymous else self._credentials,
            **_options(http=endpoint.startswith("http://")),
        )

    def _credentials(self) -> dict[str, Any]:
        """Return current credentials, for obstore."""
        credentials = self._session().get_credentials().get_frozen_credentials()
        return {
            "access_key_id": credentials.access_key,
            "secret_access_key": credentials.secret_key,
            "token": credentials.token,
            "expires_at": datetime.now(UTC) + _VALID,
        }

    def abort_uploads(self, bucket: str, prefix: str, names: Collection[str]) -> None:
        """Abort uploads to a bucket, as `ObjectStore`; raises what botocore raises."""
        client = self.client(bucket)
        pages = client.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, Prefix=prefix
        )
        for upload in (upload for page in pages for upload in page.get("Uploads", [])):
            key = upload["Key"]
            if key.rpartition("/")[2] in names:
                client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload["UploadId"])


def open_gcs(scheme: str, bucket: str) -> Any:
    """Return obstore's store of a bucket in Google Cloud Storage."""
    from obstore.store import GCSStore  # noqa: PLC0415

    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        url = emulator if "://" in emulator else f"http://{emulator}"
        options = _options(http=url.startswith("http://"))
        return GCSStore(bucket, base_url=url.rstrip("/"), bearer_token="none", **options)  # noqa: S106
    file = _google_credentials()
    if file is not None and not file.is_file():
        text = f"GOOGLE_APPLICATION_CREDENTIALS={file}: the file does not exist"
        raise ReadWriteError(f"{scheme}://{bucket}: {text}")
    if file is None and not _has_google_metadata():
        return GCSStore(bucket, skip_signature=True, **_options(http=False))
    if file is not None and _kind(file) not in ("service_account", "authorized_user"):
        try:
            from obstore.auth.google import GoogleCredentialProvider  # noqa: PLC0415

            provider = GoogleCredentialProvider()
        except ImportError:
            raise UnavailableError(
                f"{scheme}://{bucket}: {file} has credentials of type {_kind(file)}, which need "
                "google-auth and requests: pip install google-auth requests"
            ) from None
        return GCSStore(bucket, credential_provider=provider, **_options(http=False))
    return GCSStore(bucket, **_options(http=False))


def _google_credentials() -> Path | None:
    """Return the file with Google's credentials, None if there is none."""
    if name := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return Path(name)
    config = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    file = Path(config) / "application_default_credentials.json"
    return file if file.is_file() else None


def _kind(file: Path) -> str:
    """Return the type of a credential file; obstore reports one that cannot be read."""
    try:
        return str(json.loads(file.read_bytes()).get("type"))
    except (OSError, ValueError, AttributeError):
        return "service_account"


def _has_google_metadata() -> bool:
    """Return whether credentials may come from the environment or from Google's machines."""
    if any(os.environ.get(f"GOOGLE_{name}") for name in _GOOGLE_KEYS):
        return True
    try:
        return bool(socket.getaddrinfo("metadata.google.internal", 80))
    except OSError:
        return False


def open_azure(scheme: str, container: str) -> Any:
    """Return obstore's store of a container in Azure."""
    from obstore.store import AzureStore  # noqa: PLC0415

    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    fields = dict(field.split("=", 1) for field in text.split(";") if "=" in field)
    names = {
        "AccountName": "account_name",
        "AccountKey": "account_key",
        "SharedAccessSignature": "sas_key",
        "BlobEndpoint": "endpoint",
    }
    config = {names[name]: value for name, value in fields.items() if name in names}
    if "endpoint" not in config and "EndpointSuffix" in fields and "account_name" in config:
        host = f"{config['account_name']}.blob.{fields['EndpointSuffix']}"
        config["endpoint"] = f"{fields.get('DefaultEndpointsProtocol', 'https')}://{host}"
    endpoint = config.get("endpoint") or os.environ.get("AZURE_STORAGE_ENDPOINT", "")
    http = endpoint.startswith("http://") or _true(os.environ.get("AZURE_STORAGE_USE_EMULATOR"))
    try:
        return AzureStore.from_url(f"{scheme}://{container}", config=config, **_options(http=http))
    except Exception as error:
        if "Account must be specified" not in str(error):
            raise
        raise ReadWriteError(
            f"{scheme}://{container}: no storage account: set AZURE_STORAGE_ACCOUNT_NAME or "
            "AZURE_STORAGE_CONNECTION_STRING, or use abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/"
        ) from None


def open_http(scheme: str, host: str) -> Any:
    """Return obstore's store of an HTTP server.

    Args:
        scheme: http or https.
        host: may have `user:password@` before it, and a query behind it.
    """
    from obstore.store import HTTPStore  # noqa: PLC0415

    server, slash, query = host.partition("/")
    user, at, server = server.rpartition("@")
    options = _options(http=scheme == "http")
    if at:  # the client does not send it itself
        login = b64encode(unquote_to_bytes(user)).decode()
        options["client_options"]["default_headers"] = {"Authorization": f"Basic {login}"}
    return HTTPStore.from_url(f"{scheme}://{server}{slash}{query}", **options)
