"""Every way that an inventory can be wrong: the line, the key and what to do."""

from __future__ import annotations

import pytest

from tests.support.bounds import within
from tests.unit.inventory.texts import HOSTS, SMALLEST, TOP, read, refusal
from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory import validate
from vllm_cluster.kernel.inventory.problems import Loc
from vllm_cluster.kernel.inventory.words import like, nearest

# (what is added after the smallest inventory's nine lines, the whole answer)
ADDED = [
    ("ssh_user: ubuntu\n", "10: ssh_user: who logs in is set under ssh: `ssh: {user: ubuntu}`"),
    ("hsots: {}\n", "10: hsots: unknown key, did you mean hosts?"),
    ("address: 10.0.0.9\n", "10: address: unknown key here; it belongs under hosts.NAME"),
    ("heads: [gpu1]\n", "10: heads: a cluster has one head: `head: NAME`"),
    ("head: gpu3\n", '10: head: no host is called "gpu3"; there are gpu1, gpu2'),
    ("head: zeus\n", '10: head: no host is called "zeus"; there are gpu1, gpu2'),
    ("head: [gpu1, gpu2]\n", "10: head: must be the name of one host: a cluster has one head, got a list"),
    ("cluster: two\n", "10: cluster: written twice, first on line 2; keep one"),
    ("'[key]': x\n", '10: "[key]": unknown key; known here: '),
    ("environment: {'[key]': x}\n", '10: environment."[key]": invalid variable name'),
    ("path: /x\n", "10: path: unknown key; known here: "),
    ("privileged: yes please\n", "10: privileged: must be true or false, got text"),
    ("accelerator: nvidai\n", '10: accelerator: must be nvidia or cpu, not "nvidai"; did you mean nvidia?'),
    ("ray: 2.56\n", "10: ray: must be text, got a number: put it in quotes"),
    ("ray: latest\n", '10: ray: invalid version "latest"'),
    ("shm_size: 16q\n", '10: shm_size: invalid size "16q"'),
    ("shm_size: 0\n", "10: shm_size: must be at least 1048576"),
    ("shm_size: true\n", "10: shm_size: must be an integer, got true or false"),
    ("shm_size: 999999999999t\n", "10: shm_size: must be at most"),
    (f"shm_size: 0x{'f' * 5000}\n", "10: shm_size: a number that cannot be read"),
    ("environment:\n", "10: environment: must be a mapping"),
    ("environment:\n  A: 1\n", '11: environment.A: must be text, got a number: put it in quotes ("…")'),
    ("environment:\n  A: on\n  B: true\n", "12: environment.B: must be text, got true or false: put it in quotes"),
    ("environment:\n  A: 2024-01-01\n", "11: environment.A: reads as a date; put it in quotes"),
    ('environment:\n  A: "x\\0y"\n', "11: environment.A: holds a NUL character"),
    ('environment:\n  A: "\\ud800"\n', "11: environment.A: holds a lone surrogate"),
    ("environment:\n  A-B: x\n", "11: environment.A-B: invalid variable name"),
    ("environment:\n  NCCL_IB_HCA: mlx5_0\n", "11: environment.NCCL_IB_HCA: is set by vcluster on each host: "),
    ("environment:\n  VLLM_HOST_IP: x\n", "use hosts.NAME.address"),
    ("environment:\n  VLLM_CACHE_ROOT: /models/cache\n", "is set by vcluster on each host"),
    ("environment:\n  TRITON_CACHE_DIR: /models/cache\n", "is set by vcluster on each host"),
    ("environment:\n  HF_TOKEN: x\n", "use hf_token"),
    ("environment:\n  RAY_AUTH_MODE: x\n", "is set by vcluster on each host: remove it here"),
    ("volumes: /a:/b\n", "10: volumes: must be a list"),
    ("volumes:\n  - /a\n", '11: volumes[0]: invalid volume "/a"'),
    ("volumes:\n  - /a:/b:rx\n", '11: volumes[0]: invalid volume "/a:/b:rx"'),
    ("volumes:\n  - a:/b\n", '11: volumes[0].source: "a" is not absolute'),
    ("volumes:\n  - /a:/proc/x\n", '11: volumes[0].target: "/proc/x" belongs to the container\'s system'),
    ("volumes: [/a:/b, /c:/b/]\n", '10: volumes[1]: "/b" in the container is already used by volumes[0]'),
    ("volumes: [/a:/srv/models]\n", "is already used by model_cache"),
    ("ports:\n  api: 80\n", "11: ports.api: must be at least 1024"),
    ("ports:\n  api: 65536\n", "11: ports.api: must be at most 65535"),
    ('ports:\n  api: "8000"\n', "11: ports.api: must be an integer, got text"),
    ("ports:\n  api: 6379\n", "11: ports.api: 6379 is already used by ports.gcs (its default)"),
    ("ports:\n  gcs: 8000\n", "11: ports.gcs: 8000 is already used by ports.api (its default)"),
    ("ports:\n  gcs: 7000\n  api: 7000\n", "12: ports.api: 7000 is already used by ports.gcs"),
    ("ports:\n  api: 10500\n", "11: ports.api: ports.api (10500) lies in the range of Ray's workers, 10002 to 19999"),
    ("ports:\n  worker_min: 10001\n", "11: ports.worker_min: ports.client_server (10001) lies in the range"),
    ("ports:\n  worker_max: 9000\n", "11: ports.worker_max: the workers' range 10002 to 9000 is empty"),
    ("ssh:\n  host_keys: none\n", "11: ssh.host_keys: must be strict or accept-new"),
    ('ssh:\n  user: "-oProxyCommand=x"\n', "11: ssh.user: invalid user name: ssh does not accept it"),
    ('ssh:\n  jump: "ok,-oProxyCommand=x"\n', "11: ssh.jump: invalid host name: ssh does not accept it"),
    ("ssh:\n  config: ~nobody-here/x\n", "11: ssh.config: begins with ~ of a user that this machine does not know"),
    ("ssh: me@host\n", "10: ssh: must be a mapping"),
    ("hf_token: secret:x\n", "10: hf_token: looks like a secret"),
    ("hf_token: env:not a name\n", "10: hf_token: after env: comes the name of a variable"),
    ("hf_token: 'cmd:'\n", "10: hf_token: nothing readable after cmd:"),
    ('hf_token: "cmd:pass \'x"\n', "10: hf_token: the command after cmd: has a quote that does not end"),
    ("secrets:\n  AWS_KEY: AKIAABCDEFGHIJKLMNOP\n", "11: secrets.AWS_KEY: looks like a secret"),
    ("secrets:\n  RAY_X: env:A\n", "11: secrets.RAY_X: is set by vcluster in every container"),
    ("secrets:\n  HF_TOKEN: env:A\n", "11: secrets.HF_TOKEN: is set by vcluster on each host: remove it here and use"),
    ("secrets:\n  a b: env:A\n", '11: secrets."a b": invalid variable name'),
    ("secrets:\n  A: env:B\nenvironment:\n  A: x\n", "11: secrets.A: is under environment too: remove it there"),
    ("secrets:\n  A: file:~nobody-here/x\n", "11: secrets.A: begins with ~ of a user that this machine does not know"),
    ("hf_token: [env:A]\n", "10: hf_token: must be a mapping"),
]


# fault: kernel/inventory/consistency.py: _variables(document, document.data.get("environment"), → _variables(document, None,
@pytest.mark.parametrize(("added", "answer"), ADDED)
def test_one_wrong_key(added: str, answer: str) -> None:
    lines = refusal(SMALLEST + added)
    assert len(lines) == 1, lines
    assert lines[0].startswith(answer) or answer in lines[0], lines


# (a host's keys below its name on line 10, the whole answer)
HOST = [
    ("adress: 10.0.0.3", "11: hosts.new.adress: unknown key, did you mean address?"),
    ("address: 10.0.0.1", "11: hosts.new.address: is the address of hosts.gpu1 on line 7: list each host once"),
    ("address: fd00:0::1%eth0", "a link-local IPv6 address is valid on one interface only"),
    ("address: fe80::1", "a link-local IPv6 address is valid on one interface only"),
    ("address: 127.0.0.1", "reaches no other host"),
    ("address: '::1'", "reaches no other host"),
    ("address: 0.0.0.0", "reaches no other host"),
    ("address: 224.0.0.1", "reaches no other host"),
    ("address: '::ffff:10.0.0.7'", 'IPv4-mapped IPv6 address "::ffff:10.0.0.7": write 10.0.0.7'),
    ("address: gpu1.lab", "is not an IP address: a name goes under ssh"),
    ("address: 10.0.0.7/24", "is a network: write the address alone, 10.0.0.7"),
    ("address: 10.1", "11: hosts.new.address: must be text, got a number"),
    ("{address: 10.0.0.7, gpus: 0}", "hosts.new.gpus: must be at least 1"),
    ("{address: 10.0.0.7, gpus: 65}", "hosts.new.gpus: must be at most 64"),
    ("{address: 10.0.0.7, gpus: 1.5}", "hosts.new.gpus: must be an integer"),
    ("{address: 10.0.0.7, gpus: true}", "hosts.new.gpus: must be an integer, or a list of indices or UUIDs"),
    ("{address: 10.0.0.7, gpus: []}", "hosts.new.gpus: must name 1 to 64 GPUs"),
    ("{address: 10.0.0.7, gpus: [0, 0]}", "hosts.new.gpus: names GPU 0 twice"),
    ("{address: 10.0.0.7, gpus: [0, GPU0]}", 'hosts.new.gpus: "GPU0" is neither an index (0) nor a UUID (GPU-…)'),
    ("{address: 10.0.0.7, gpus: [MIG-1234]}", "hosts.new.gpus: names a MIG slice"),
    ("{address: 10.0.0.7, interface: '=eth0'}", "hosts.new.interface: write the interface's name alone"),
    ("{address: 10.0.0.7, interface: 'a b'}", "invalid interface name"),
    ("{address: 10.0.0.7, hcas: [mlx5_0, '^mlx5_1']}", 'hosts.new.hcas[1]: invalid device name "^mlx5_1"'),
    ("{address: 10.0.0.7, head: true}", "hosts.new.head: the head is set once, at the top of the file"),
    ("{address: 10.0.0.7, role: head}", "hosts.new.role: the head is set once"),
    ("{address: 10.0.0.7, name: x}", "hosts.new.name: a host's name is its key under hosts"),
    ("{address: 10.0.0.7, line: 3}", "hosts.new.line: unknown key"),
    ("{address: 10.0.0.7, port: 22}", "hosts.new.port: unknown key here; it belongs under hosts.NAME.ssh"),
    ("{address: 10.0.0.7, transport: openssh}", "hosts.new.transport: unknown key here; it belongs under ssh"),
    ("{address: 10.0.0.7, ssh: gpu1}", "hosts.new.ssh: is the ssh target of hosts.gpu1 on line 6"),
    ("{address: 10.0.0.7, ssh: GPU1.}", "hosts.new.ssh: is the ssh target of hosts.gpu1 on line 6"),
    ("{address: 10.0.0.7, ssh: -oProxyCommand=x}", "hosts.new.ssh.host: invalid host name: ssh does not accept it"),
    ("{address: 10.0.0.7, ssh: 'a:99999'}", "hosts.new.ssh: port must be 1 to 65535, got 99999"),
    ("{address: 10.0.0.7, ssh: 'a:b'}", "hosts.new.ssh: invalid port after the last colon"),
    ("{address: 10.0.0.7, ssh: 'ssh://a'}", "hosts.new.ssh: write user@host:port, without ssh://"),
    ("{address: 10.0.0.7, ssh: '@a'}", "hosts.new.ssh.user: invalid user name"),
    ("{address: 10.0.0.7, ssh: root@@gpu1}", "hosts.new.ssh.user: invalid user name"),
    ("{address: 10.0.0.7, ssh: ''}", "hosts.new.ssh.host: invalid host name"),
    ("{address: 10.0.0.7, ssh: {prot: 22}}", "hosts.new.ssh.prot: unknown key, did you mean port?"),
    ("10.0.0.7", "hosts.new: must be a mapping: the host's `address: …` and other keys below it, got text"),
    ("", "10: hosts.new: must be a mapping"),
]


# fault: kernel/inventory/grammar.py: if found.is_loopback or found.is_unspecified → if found.is_unspecified
@pytest.mark.parametrize(("keys", "answer"), HOST)
def test_one_wrong_host(keys: str, answer: str) -> None:
    lines = refusal(f"{SMALLEST}  new:\n    {keys}\n")
    assert len(lines) == 1, lines
    assert answer in lines[0], lines


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "1: the file is empty; `vcluster init` writes an inventory"),
        ("# only a comment\n", "1: the file is empty"),
        ("- a\n", "1: must be a mapping (`key: value` lines below it), got a list"),
        ("hello\n", "1: must be a mapping (`key: value` lines below it), got text"),
        ("a:\n\tb: 1\n", "2: a tab; YAML is indented with spaces"),
        ("a: b: c\n", "1: an unexpected colon"),
        ("a: 'x\n", "the file ends inside quotes"),
        ("a: [1\n", "2: not YAML: expected ',' or ']'"),
        ("a: *b\n", "1: not YAML: found undefined alias"),
        ("a: 1\n---\na: 1\n", "2: a second document begins (---); an inventory is one document"),
        ("a: 1\nb: \x01\n", "2: an unprintable character"),
        ("[" * 1500, "1: nested too deep to be an inventory"),
        ("&a [*a]\n", "an alias to something that it is itself part of"),
        (f"{TOP}hosts: []\n", "5: hosts: must be a mapping: each host's name, and its keys below it, got a list"),
        (f"{TOP}hosts: {{}}\n", "5: hosts: holds 0 hosts; a cluster has 1 to 256"),
        (f"{TOP}hosts:\n", "5: hosts: must be a mapping: each host's name"),
        (f"{TOP}hosts:\n  1: {{address: 10.0.0.1}}\n", '6: hosts: the key "1" is not text; put it in quotes'),
        (f"{TOP}hosts:\n  [a]: {{address: 10.0.0.1}}\n", "6: hosts: the key this is not text; put it in quotes"),
        (f"{TOP}hosts:\n  -x: {{address: 10.0.0.1}}\n", "6: hosts.-x: invalid host name"),
        (SMALLEST.replace("10.0.0.2", "!secret x"), '9: hosts.gpu2.address: the tag "!secret" means nothing here'),
        (SMALLEST.replace("version: 1", "version: 2"), "1: version: must be 1, the format that this vcluster reads"),
        (SMALLEST.replace("lab", "La_b"), '2: cluster: invalid cluster name "La_b"'),
        (SMALLEST.replace("lab", "x" * 33), "2: cluster: "),
        (
            SMALLEST.replace("vllm/vllm-openai:v0.19.0", "--privileged"),
            '3: image: invalid image reference "--privileged"',
        ),
        (
            SMALLEST.replace("vllm/vllm-openai", "vLLM/x"),
            '3: image: invalid image reference "vLLM/x:v0.19.0" (example: ',
        ),
        (SMALLEST.replace("/srv/models", "models"), '4: model_cache: "models" is not absolute'),
        (SMALLEST.replace("/srv/models", "~/models"), "4: model_cache: ~ is another folder on each host"),
        (SMALLEST.replace("/srv/models", "/srv/../x"), '4: model_cache: "/srv/../x" goes up with ..'),
        (SMALLEST.replace("/srv/models", "/"), '4: model_cache: "/" belongs to the container\'s system'),
        (SMALLEST.replace("/srv/models", "/a:b"), '4: model_cache: "/a:b" holds a colon'),
    ],
)
def test_one_wrong_document(text: str, answer: str) -> None:
    lines = refusal(text)
    assert any(answer in line for line in lines), lines


def test_a_host_written_twice_names_both_lines() -> None:
    assert refusal(SMALLEST + "  gpu1:\n    address: 10.0.0.3\n") == [
        "10: hosts.gpu1: written twice, first on line 6; keep one"
    ]


def test_all_problems_are_listed_in_the_order_of_the_file() -> None:
    wrong = SMALLEST.replace("lab", "LAB").replace("10.0.0.2", "10.0.0.1") + "ports: {api: 1}\nfoo: 1\n"
    assert [line.split(":")[0] for line in refusal(wrong)] == ["2", "9", "10", "11"]


def test_at_most_twenty_problems_and_the_number_of_the_rest() -> None:
    lines = refusal(SMALLEST + "".join(f"zzz{n}: 1\n" for n in range(30)))
    assert len(lines) == 21
    assert lines[-1] == "30: 10 more problems from here on"


def test_two_hundred_and_fifty_six_hosts_and_no_more() -> None:
    hosts = [f"  h{n}: {{address: 10.0.{n >> 7}.{n & 127}}}\n" for n in range(257)]
    assert len(read(TOP + "hosts:\n" + "".join(hosts[:256])).hosts) == 256
    assert refusal(TOP + "hosts:\n" + "".join(hosts)) == ["5: hosts: holds 257 hosts; a cluster has 1 to 256"]


# fault: kernel/inventory/document.py: if self.count > _MAX_WRITTEN: → if False:
def test_a_file_of_nothing_but_values_is_not_taken_into_memory() -> None:
    """Of 256 kB of these 270 MB and 18 s; of as many unknown keys 13 s, for the words that they are near to."""
    with within(15):
        assert refusal(TOP + f"a: [{'?,' * 21_000}]\n") == [
            "1: more than 20000 keys and values, the limit of an inventory"
        ]
        assert refusal(TOP + "".join(f"bad{n}: 1\n" for n in range(10_500)))[0].startswith("1: more than 20000")


def test_aliases_cannot_blow_up_the_file() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    assert any("aliases make this file too large" in line for line in refusal(bomb))


# fault: kernel/inventory/document.py: self.text += len(node.value) → pass
# fault: kernel/inventory/document.py: self.text += len(key.value) → pass
@pytest.mark.parametrize(
    ("shared", "host"), [('x: &a "{}"', "{address: *a}"), ("x: &a {{address: 10.0.0.9, ? {} : 1}}", "*a")]
)
def test_aliases_cannot_repeat_a_long_text_for_each_host(shared: str, host: str) -> None:
    """Each refused value is looked through for secrets: as the address of 3,500 hosts it took minutes."""
    hosts = "".join(f"  h{n}: {host}\n" for n in range(250))
    with within(30):
        lines = refusal(TOP + shared.format("a" * 100_000) + "\nhosts:\n" + hosts)
    assert lines == ["1: aliases make this file too large"]


# fault: kernel/inventory/document.py: _MAX_DEPTH = 32 → _MAX_DEPTH = 320
def test_aliases_cannot_blow_up_the_places_of_a_deep_file() -> None:
    """The place of a value is as long as it is deep."""
    shared = f"x: &a [{', '.join('1' for _ in range(1_000))}]\n"
    deep = "{a: " * 60 + f"[{', '.join('*a' for _ in range(90))}]" + "}" * 60
    with within(60, megabytes=15):
        assert any("nested too deep to be an inventory" in line for line in refusal(f"{shared}y: {deep}\n"))


TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ"


# fault: kernel/inventory/words.py: text = printable(redact_value(str(value))) → text = printable(str(value))
@pytest.mark.parametrize(
    "text",
    [
        f"hf_token: {TOKEN}\n",
        f"hf_token: env:{TOKEN}-\n",
        f"api_key: {TOKEN}\n",
        f"hf_token: {{kind: env, value: '{TOKEN} '}}\n",
        f"environment: {{HF_TOKEN: {TOKEN}}}\n",
        f"environment: {{A: [{TOKEN}]}}\n",
        f"environment: {{'{TOKEN} ': x}}\n",
        f"{TOKEN}: x\n",
        f"ssh: {{user: 'me:{TOKEN}'}}\n",
        f"head: {TOKEN}\n",
        f"accelerator: {TOKEN}\n",
        f"shm_size: {TOKEN}\n",
        f"volumes: [{TOKEN}]\n",
        f"ray: {TOKEN}\n",
        f"hf_token: !{TOKEN} x\n",
        f"hf_token: *{TOKEN}\n",
        f"hf_token: {TOKEN}: {TOKEN}\n",
    ],
)
def test_a_token_in_the_wrong_place_is_not_printed(text: str) -> None:
    for line in refusal(SMALLEST + text):
        assert TOKEN not in line


def test_a_password_in_an_ssh_target_is_not_printed() -> None:
    lines = refusal(TOP + HOSTS + "  new:\n    address: 10.0.0.7\n    ssh: me:hunter2@host\n")
    assert lines == ["12: hosts.new.ssh.user: holds a colon: an ssh target carries no password; use a key or an agent"]


SYSTEM = [
    "/",
    "/usr",
    "/usr/",
    "//etc",
    "/etc/.",
    "/tmp",
    "/opt",
    "/var",
    "/var/lib",
    "/run",
    "/var/run",
    "/run/secrets",
]
SYSTEM += ["/lib64", "/usr/local/lib", "/dev/shm", "/sys/x", "/proc"]
OURS = ["/opt/vcluster", "/opt/vcluster/models", "/var/lib/vcluster/x", "/run/secrets/vcluster", "/tmp/ray"]
OURS += ["/var/run/secrets/vcluster/x"]
FINE = ["/srv/models", "/opt/models", "/var/lib/models", "/tmp/models", "/mnt", "/data", "/home/me", "/etc/ssl/certs"]
FINE += ["/usr/share/models", "/opt/vcluster2", "/run/models", "/root"]


# fault: kernel/inventory/container.py: _SYSTEM.fullmatch(real) or _within → _within
@pytest.mark.parametrize("path", SYSTEM + OURS)
def test_a_folder_of_the_system_is_not_mounted_over(path: str) -> None:
    what = "is vcluster's own" if path in OURS else "belongs to the container's system"
    (cache,) = refusal(SMALLEST.replace("/srv/models", path))
    assert cache.startswith("4: model_cache: "), cache
    assert what in cache
    (volume,) = refusal(f"{SMALLEST}volumes:\n  - /data:{path}\n")
    assert volume.startswith("11: volumes[0].target: "), volume
    assert what in volume


@pytest.mark.parametrize("path", FINE)
def test_any_other_folder_is(path: str) -> None:
    assert read(SMALLEST.replace("/srv/models", path)).model_cache == path


# fault: kernel/inventory/grammar.py: if type(value) is not int: → if value != 1:
@pytest.mark.parametrize("value", ["1.0", "true", "'1'", "1e0", "[1]", "2"])
def test_a_version_is_the_number_one(value: str) -> None:
    (line,) = refusal(SMALLEST.replace("version: 1", f"version: {value}"))
    quoted = ": a number, not text (`version: 1`)" if value == "'1'" else ""
    assert line == f"1: version: must be 1, the format that this vcluster reads{quoted}"


# fault: kernel/inventory/validate.py: _EXAMPLES.get(_pattern(loc), ()) if shaped → _EXAMPLES.get(loc, ()) if not shaped
@pytest.mark.parametrize(
    ("text", "line", "example"),
    [
        (f"{TOP}hosts:\n- gpu1\n", 5, ["hosts:", "  gpu1: {address: 10.0.0.11}", "  gpu2: {address: 10.0.0.12}"]),
        (f"{TOP}hosts:\n", 5, ["hosts:", "  gpu1: {address: 10.0.0.11}", "  gpu2: {address: 10.0.0.12}"]),
        (f"{SMALLEST}volumes: {{a: b}}\n", 10, ["volumes:", "  - /srv/models:/models:ro", "  - /srv/data:/data"]),
        (f"{SMALLEST}ssh: me\n", 10, ["ssh:", "  user: ubuntu", "  identity: ~/.ssh/id_ed25519"]),
    ],
)
def test_a_value_of_another_shape_gets_an_example_that_loads(text: str, line: int, example: list[str]) -> None:
    with pytest.raises(InventoryError) as refused:
        read(text)
    first, *lines = refused.value.message.splitlines()
    assert first.startswith(f"inventory.yaml:{line}: {example[0]} must be ")
    assert lines == [f"    {one}" for one in example]
    without = "" if example[0] == "hosts:" else HOSTS
    read(TOP + without + "\n".join(example) + "\n")


# fault: kernel/inventory/document.py: error.problem == _COLON and (key → error.problem != _COLON and (key
def test_a_colon_without_a_space_is_reported_at_its_own_line() -> None:
    with pytest.raises(InventoryError) as refused:
        read(SMALLEST.replace("version: 1", "version:1"))
    where = next(number for number, line in enumerate(SMALLEST.splitlines(), 1) if line.startswith("version"))
    text = f"inventory.yaml:{where}: a colon without a space behind it: write `version: …`"
    assert refused.value.message == text


def test_several_problems_have_their_number_first() -> None:
    with pytest.raises(InventoryError) as refused:
        read(f"{SMALLEST}kind: x\nusr: y\n")
    count, kind, user = refused.value.message.splitlines()
    assert count == "inventory.yaml: 2 problems"
    # Of two letters any word may have both.
    assert kind.startswith("inventory.yaml:10: kind: unknown key; known here: ")
    assert user == "inventory.yaml:11: usr: unknown key, did you mean user?"


def test_what_people_bring_from_elsewhere_is_answered() -> None:
    (password,) = refusal(TOP + "hosts:\n  gpu1:\n    address: 10.0.0.1\n    passwd: x\n")
    assert "passwords are not allowed: use a key" in password
    (version,) = refusal(SMALLEST.replace("version: 1\n", ""))
    assert "version: is missing: write `version: 1`" in version


# fault: kernel/inventory/words.py: [digits.lstrip("0") for digits in → [int(digits) for digits in
@pytest.mark.parametrize("word", ["gpu" + "1" * 5000, "1" * 40_000, "gpu-" * 10_000], ids=["host", "digits", "long"])
def test_a_word_of_any_length_is_none_that_was_meant(word: str) -> None:
    """Python makes no number of more than 4300 digits; that was an error of the program."""
    assert nearest(word, ["gpu1", "gpu2", word[:-1]]) is None
    assert not like(word, "gpu1") or word.startswith("gpu1")
    with within(5):
        for added in (f"head: {word}\n", f"? {word}\n: 1\n", f"accelerator: {word}\n"):
            assert refusal(SMALLEST + added)


# fault: kernel/inventory/validate.py: new[:MAX_PROBLEMS]: → new:
# fault: kernel/inventory/validate.py: and len(self) < _MAX_COMPARED: → :
def test_what_was_meant_is_looked_for_where_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand keys for each of 95 hosts, by an alias in 32 kB, took 20 s."""
    compared: list[str] = []
    looked = validate._unknown

    def unknown(loc: Loc, known: validate._Meant) -> str:
        compared.append("text")
        return looked(loc, known)

    monkeypatch.setattr(validate, "nearest", lambda word, known: compared.append(word))
    monkeypatch.setattr(validate, "_unknown", unknown)
    keys = ", ".join(f"clustr_{number}_adress: 1" for number in range(300))
    hosts = "".join(f"  h{number}: *h\n" for number in range(40))
    [*_, last] = refusal(TOP + f"hosts:\n  g1: &h {{{keys}}}\n{hosts}")
    assert last.endswith(" more problems from here on")
    assert len(compared) <= 120
