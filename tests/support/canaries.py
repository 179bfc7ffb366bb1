"""A laptop whose files, variables and helpers are full of secrets that must not reach a host."""

from __future__ import annotations

import base64
import json
import secrets
import shlex
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

# Kinds of secrets that people have on their machines, by how the names of their canaries begin.
KINDS = {
    "Docker's logins": ("auths-", "old-", "docker-", "header", "config-proxy", "no-proxy"),
    "credential helpers": ("helper",),
    "Hugging Face": ("hf-",),
    "netrc": ("netrc",),
    "proxies": ("proxy",),
    "ssh": ("ssh-",),
    "AWS": ("aws-",),
    "Google Cloud": ("gcp-",),
    "Azure": ("azure-",),
    "pip": ("pip-",),
    "git": ("git-",),
    "Weights & Biases": ("wandb-",),
}
HELPER = """#!/bin/sh
echo "$0 $*" >> {record}
echo '{{"ServerURL": "https://registry.example.com", "Username": "{user}", "Secret": "{secret}"}}'
"""


def forms(secret: str) -> set[bytes]:
    """A secret as it is, and as base64 (wherever it begins), hex, URL, JSON and shell would have it."""
    raw = secret.encode()
    found = {raw, raw.hex().encode(), raw.hex().upper().encode()}
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + raw)
        # What is before and behind it in one string changes the characters at its ends.
        whole = coded[4 if shift else 0 : len(coded) - 4]
        found |= {whole, whole.replace(b"+", b"-").replace(b"/", b"_")}
    found |= {urllib.parse.quote(secret, safe="").encode(), urllib.parse.quote_plus(secret).encode()}
    found |= {secret.encode("unicode_escape"), ascii(secret).strip("'\"").encode(), shlex.quote(secret).encode()}
    # The halves: a cut line or a mask that is too short.
    half = len(secret) // 2
    return found | {secret[: half + 4].encode(), secret[half - 4 :].encode()}


@dataclass
class Laptop:
    """A home folder with secrets in it; `environment` makes a process live there."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)

    @property
    def record(self) -> Path:
        """Where a credential helper notes that it was run."""
        return self.home / "helper-ran"

    def secret(self, name: str) -> str:
        """A new secret, known by a name."""
        return self.secrets.setdefault(name, f"canary{secrets.token_hex(12)}")

    def found_in(self, texts: Iterable[bytes]) -> list[str]:
        """The names of the secrets that some text holds, in any form."""
        whole = b"\n".join(texts)
        return [name for name, secret in self.secrets.items() if any(form in whole for form in forms(secret))]


def laptop(home: Path, *, path: str, config: object = ...) -> Laptop:
    """Fill a home folder; `config` replaces the content of Docker's config.json."""
    made = Laptop(home)
    docker, tools = home / ".docker", home / "tools"
    for folder in (docker, tools, home / ".cache" / "huggingface"):
        folder.mkdir(parents=True, exist_ok=True)
    docker.joinpath("config.json").write_text(json.dumps(docker_config(made) if config is ... else config))
    home.joinpath(".dockercfg").write_text(json.dumps(_auths(made, "old")))
    for name in ("canary", "asked"):
        helper = tools / f"docker-credential-{name}"
        helper.write_text(
            HELPER.format(record=made.record, user=made.secret("helper-user"), secret=made.secret("helper"))
        )
        helper.chmod(0o755)
    netrc = f"default login {made.secret('netrc-user')} password {made.secret('netrc')}\n"
    home.joinpath(".netrc").write_text(netrc)
    home.joinpath(".netrc").chmod(0o600)
    home.joinpath(".cache", "huggingface", "token").write_text(made.secret("hf-cache"))
    proxies = {
        name: f"http://{made.secret('proxy-user')}:{made.secret('proxy')}@127.0.0.1:9"
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    }
    for path_, text in _files(made).items():
        (home / path_).parent.mkdir(parents=True, exist_ok=True)
        (home / path_).write_text(text)
        (home / path_).chmod(0o600)
    made.environment = {
        "HOME": str(home),
        "DOCKER_CONFIG": str(docker),
        "NETRC": str(home / ".netrc"),
        "PATH": f"{tools}:{path}",
        **proxies,
        "SSH_AUTH_SOCK": str(home / made.secret("ssh-agent") / "agent.sock"),
        "GOOGLE_APPLICATION_CREDENTIALS": str(home / ".config/gcloud/application_default_credentials.json"),
        "PIP_EXTRA_INDEX_URL": f"http://{made.secret('pip-user')}:{made.secret('pip-variable')}@127.0.0.1:9/simple",
        **{variable: made.secret(name) for variable, name in VARIABLES.items()},
    }
    return made


VARIABLES = {
    "HF_TOKEN": "hf-variable",
    "HUGGING_FACE_HUB_TOKEN": "hf-old-variable",
    "DOCKER_AUTH_CONFIG": "docker-variable",
    "DOCKER_PASSWORD": "docker-password",
    "AWS_ACCESS_KEY_ID": "aws-id",
    "AWS_SECRET_ACCESS_KEY": "aws-variable",
    "AWS_SESSION_TOKEN": "aws-session",
    "CLOUDSDK_AUTH_ACCESS_TOKEN": "gcp-variable",
    "AZURE_CLIENT_SECRET": "azure-variable",
    "AZURE_STORAGE_KEY": "azure-storage",
    "GH_TOKEN": "git-variable",
    "WANDB_API_KEY": "wandb-variable",
}


def _files(made: Laptop) -> dict[str, str]:
    """What other programs keep in a home folder, by its path there."""
    aws = f"[default]\naws_access_key_id = {made.secret('aws-file-id')}\n"
    return {
        ".cache/huggingface/stored_tokens": f"[mine]\nhf_token = {made.secret('hf-stored')}\n",
        ".ssh/id_ed25519": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{made.secret('ssh-key')}\n",
        ".aws/credentials": f"{aws}aws_secret_access_key = {made.secret('aws-file')}\n",
        ".config/gcloud/application_default_credentials.json": json.dumps({"refresh_token": made.secret("gcp-file")}),
        ".azure/msal_token_cache.json": json.dumps({"AccessToken": {"x": {"secret": made.secret("azure-file")}}}),
        ".config/pip/pip.conf": f"[global]\nindex-url = http://me:{made.secret('pip-file')}@127.0.0.1:9/simple\n",
        ".git-credentials": f"https://me:{made.secret('git-file')}@git.example.com\n",
        ".config/wandb/settings": f"[default]\napi_key = {made.secret('wandb-file')}\n",
    }


def _auths(made: Laptop, kind: str) -> dict[str, object]:
    user, password = made.secret(f"{kind}-user"), made.secret(f"{kind}-password")
    coded = base64.b64encode(f"{user}:{password}".encode()).decode()
    login = {"auth": coded, "email": made.secret(f"{kind}-email"), "identitytoken": made.secret(f"{kind}-token")}
    return dict.fromkeys(("https://index.docker.io/v1/", "docker.io", "registry.example.com"), login)


def docker_config(made: Laptop) -> dict[str, object]:
    """Every key of config.json that can hold a secret, or run something."""
    proxy = f"http://{made.secret('config-proxy-user')}:{made.secret('config-proxy')}@127.0.0.1:9"
    return {
        "auths": _auths(made, "auths"),
        "credsStore": "canary",
        "credHelpers": {"docker.io": "asked", "registry.example.com": "asked"},
        "HttpHeaders": {"X-Meta-Source-Type": made.secret("header")},
        "proxies": {"default": {"httpProxy": proxy, "httpsProxy": proxy, "noProxy": made.secret("no-proxy")}},
        "currentContext": "elsewhere",
    }


# What is found in people's homes, and made the Docker SDK fail: as JSON.
BROKEN: tuple[object, ...] = (
    {"credsStore": "desktop"},
    {"credHelpers": {"docker.io": "not-there"}},
    {"auths": {"x": "y"}},
    {"auths": None, "credHelpers": None},
    {"proxies": {"default": "http://x"}},
    {"HttpHeaders": None},
    {"HttpHeaders": ["x"]},
    [],
    None,
    "text",
)
