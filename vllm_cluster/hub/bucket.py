"""Objects of an S3 bucket, listed by this machine with its own AWS configuration and signed for another one to read."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vllm_cluster.errors import PreflightFailed, Unreachable, UsageError, VclusterError
from vllm_cluster.laptop import THIS_MACHINE, require_library

SCHEME = "s3://"
LIBRARY, VERSION = "boto3", "1.34"
# The longest life of a signed address.
MAX_LIFE = 7 * 24 * 3600
CONNECT_SECONDS, READ_SECONDS, TRIES = 10, 30, 3
# A folder of one model has some hundreds; a whole bucket may have millions.
MAX_OBJECTS = 20_000
_ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")
_REFUSED_KEYS = (
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"),
    *("RequestTimeTooSkewed", "AuthorizationHeaderMalformed"),
)
_PROFILE = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


@dataclass(frozen=True)
class BucketFolder:
    """What s3://BUCKET/FOLDER names; the folder is empty for the bucket itself."""

    bucket: str
    folder: str

    @classmethod
    def named(cls, address: str) -> BucketFolder:
        """Read an address.

        Raises:
            UsageError: it names no bucket.
        """
        bucket, _, folder = address.removeprefix(SCHEME).partition("/")
        if not bucket:
            raise UsageError(f"{address}: must be {SCHEME}BUCKET/FOLDER", hint=f"vcluster pull {SCHEME}BUCKET/FOLDER")
        return cls(bucket, folder.strip("/"))

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.folder}".rstrip("/")

    @property
    def prefix(self) -> str:
        """What the keys of its objects begin with."""
        return f"{self.folder}/" if self.folder else ""

    @property
    def name(self) -> str:
        """Its last word."""
        return self.folder.rpartition("/")[2] or self.bucket


@dataclass(frozen=True)
class StoredObject:
    """An object below the folder."""

    path: str
    size: int
    etag: str


class Bucket:
    """The objects of one folder; `endpoint` is where they are asked for."""

    def __init__(self, folder: BucketFolder) -> None:
        """Find this machine's AWS configuration; nothing is asked yet.

        Raises:
            PreflightFailed: boto3 is not installed here, or the configuration cannot be.
        """
        require_library(LIBRARY, VERSION)
        self._folder = folder
        with self._errors():
            self._session, self._client = _client("")
        self.endpoint = str(self._client.meta.endpoint_url)

    def listed(self) -> list[StoredObject]:
        """The objects of the folder, but for hidden ones.

        Raises:
            PreflightFailed: there is no such bucket, or it may not be listed, or an object cannot be read as it is.
            Unreachable: the endpoint does not answer.
        """
        found = []
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._folder.bucket, Prefix=self._folder.prefix):
                found += [row for row in page.get("Contents", ()) if _is_file(self._path(row))]
                self._ensure_one_model(found)
        return [StoredObject(self._path(row), int(row["Size"]), str(row["ETag"])) for row in found]

    def signed(self, paths: Sequence[str]) -> tuple[dict[str, str], float]:
        """An address for each object, from which it can be read without any key, and until when.

        Raises:
            PreflightFailed: there are no credentials.
        """
        now = time.time()
        with self._errors():
            self._move_to_its_region()
            expires = min(now + MAX_LIFE, self._credentials_end() or now + MAX_LIFE)
            return {
                path: str(
                    self._client.generate_presigned_url(
                        "get_object",
                        Params={"Bucket": self._folder.bucket, "Key": f"{self._folder.prefix}{path}"},
                        ExpiresIn=MAX_LIFE,
                    )
                )
                for path in paths
            }, expires

    def _move_to_its_region(self) -> None:
        """An address is signed for one region; botocore follows a bucket to its own only where it asks itself."""
        found = self._client.head_bucket(Bucket=self._folder.bucket)["ResponseMetadata"]["HTTPHeaders"]
        region = str(found.get("x-amz-bucket-region", ""))
        if region not in ("", self._client.meta.region_name):
            self._session, self._client = _client(region)

    def _credentials_end(self) -> float | None:
        """When credentials that were lent end; None where that is not known, or they last."""
        # Private to botocore, which has no other word for it; without it the host names the end once it is there.
        end = getattr(self._session.get_credentials(), "_expiry_time", None)
        return float(end.timestamp()) if end else None

    def _path(self, row: dict[str, Any]) -> str:
        return str(row["Key"])[len(self._folder.prefix) :]

    def _ensure_one_model(self, found: Sequence[dict[str, Any]]) -> None:
        if len(found) > MAX_OBJECTS:
            text = f"{self._folder} has more than {MAX_OBJECTS} objects: not the folder of one model"
            raise PreflightFailed(f"pull: {text}", hint=f"vcluster pull {self._folder}/FOLDER")
        if archived := next((row for row in found if row.get("StorageClass") in _ARCHIVED), None):
            key, kind = self._path(archived), archived["StorageClass"]
            names = f"--bucket {shlex.quote(self._folder.bucket)} --key {shlex.quote(str(archived['Key']))}"
            restore = f"aws s3api restore-object {names} --restore-request Days=7"
            text = f"{self._folder}/{key} is archived ({kind}): restore it first"
            raise PreflightFailed(f"pull: {text}", hint=restore)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - of this verb alone

        try:
            yield
        except ClientError as error:
            raise self._refusal(error.response) from None
        except (BotoCoreError, ValueError) as error:
            raise self._trouble(error) from None

    def _refusal(self, response: dict[str, Any]) -> VclusterError:
        code = str(response.get("Error", {}).get("Code", ""))
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
        where = self.endpoint
        if code == "NoSuchBucket":
            text, hint = (
                f"{where} has no bucket {self._folder.bucket}",
                "check the name, AWS_ENDPOINT_URL and AWS_REGION",
            )
        elif code in _REFUSED_KEYS:
            text, hint = f"{where} refuses the AWS credentials of this machine: {code}", _PROFILE
        elif code == "AccessDenied" or status == 403:
            text = f"the AWS credentials of this machine may not list {self._folder}: {code}"
            hint = f"allow them s3:ListBucket and s3:GetObject there\n{_PROFILE}"
        else:
            text, hint = f"{where} answers {status} {code} for {self._folder}", "try again later"
        return PreflightFailed(f"{THIS_MACHINE}: pull: {text}", hint=hint)

    def _trouble(self, error: Exception) -> VclusterError:
        from botocore import exceptions  # noqa: PLC0415 - as above

        words = str(error).split("\n")[0][:300]
        if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
            # Its words have the address that was asked for, which is long and adds nothing.
            why = str(error.kwargs.get("error", "") or type(error).__name__).rpartition(": ")[2].rstrip(")'\"")
            text = f"pull: cannot reach {self.endpoint}: {why}"
            return Unreachable(THIS_MACHINE, text, hint="check AWS_ENDPOINT_URL and the network of this machine")
        if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            words = "no AWS credentials"
        return PreflightFailed(f"{THIS_MACHINE}: pull: {words}", hint=_PROFILE)


def _client(region: str) -> tuple[Any, Any]:
    """A session, and its client of a region, or of that which is configured.

    Addresses are of version 4, the only one with which all servers check a life.
    """
    import boto3  # noqa: PLC0415 - not everywhere, and takes 0.2 s
    from botocore.config import Config  # noqa: PLC0415 - as above

    session = boto3.session.Session(region_name=region or None)
    retries = {"mode": "standard", "max_attempts": TRIES}
    config = Config(
        signature_version="s3v4", connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries
    )
    client = session.client("s3", config=config)
    own = "amazonaws.com" not in client.meta.endpoint_url
    if own and not (client.meta.config.s3 or {}).get("addressing_style"):
        # Few have a name in DNS for each bucket.
        client = session.client("s3", config=config.merge(Config(s3={"addressing_style": "path"})))
    return session, client


def _is_file(path: str) -> bool:
    """Whether it is more than the mark of a folder, and not hidden."""
    return bool(path) and not path.endswith("/") and not any(part.startswith(".") for part in path.split("/"))
