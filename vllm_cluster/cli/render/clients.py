"""What clients of the API need, as a person or a program wants it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm_cluster.actions.endpoint import ClientEndpoint
from vllm_cluster.shell_line import Filled, export_line, shell_line

_PYTHON = """\
{imports}
from openai import OpenAI

client = OpenAI(base_url={url!r}, api_key={key})
stream = client.chat.completions.create(
    model={model!r},
    messages=[{{"role": "user", "content": "What is a river?"}}],
    max_tokens=64,
    stream=True,
)
for event in stream:
    if event.choices:
        print(event.choices[0].delta.content or "", end="", flush=True)
print()
"""


def show_clients(endpoint: ClientEndpoint, form: str, inventory: Path | None, *, as_json: bool) -> None:
    """Write it on standard output; the key itself only for --env."""
    # Elsewhere there is no inventory to ask, and a snippet with the key in it would be passed on.
    verb = ["vcluster", "endpoint", *(["-i", str(inventory.absolute())] if inventory else [])]
    words = [*verb, "--key"]
    if as_json:
        tunnel = {"pid": endpoint.tunnel.pid, "port": endpoint.tunnel.port} if endpoint.tunnel else None
        document = {"v": 1, "base_url": endpoint.url, "model": endpoint.model, "key": shell_line(words)}
        sys.stdout.write(json.dumps({**document, "tunnel": tunnel}) + "\n")
        return
    forms = {"--env": _env, "--python": _python, "--curl": _curl, "": _plain}
    sys.stdout.write(forms[form](endpoint, words))


def _env(endpoint: ClientEndpoint, _words: list[str]) -> str:
    values = {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": endpoint.key}
    return "".join(f"{export_line(name, value)}\n" for name, value in values.items())


def _python(endpoint: ClientEndpoint, words: list[str]) -> str:
    if endpoint.tunnel:
        imports, key = "import subprocess\n", f"subprocess.check_output({words!r}, text=True).strip()"
    else:
        imports, key = "import os\n", 'os.environ["OPENAI_API_KEY"]'
    return _PYTHON.format(imports=imports, url=endpoint.url, key=key, model=endpoint.model)


def _curl(endpoint: ClientEndpoint, words: list[str]) -> str:
    begin = "Authorization: Bearer "
    key = Filled(begin, words) if endpoint.tunnel else Filled(begin, variable="OPENAI_API_KEY")
    message = {"role": "user", "content": "What is a river?"}
    body = json.dumps({"model": endpoint.model, "messages": [message], "max_tokens": 64})
    url = f"{endpoint.url}/chat/completions"
    return shell_line(["curl", "-s", url, "-H", "Content-Type: application/json", "-H", key, "-d", body]) + "\n"


def _plain(endpoint: ClientEndpoint, words: list[str]) -> str:
    lines = [f"url:    {endpoint.url}", f"model:  {endpoint.model}", f"key:    {shell_line(words)}"]
    if endpoint.tunnel:
        close = shell_line([*words[:-1], "--close"])
        lines.append(f"tunnel: process {endpoint.tunnel.pid}, until {close}")
    return "\n".join(lines) + "\n"
