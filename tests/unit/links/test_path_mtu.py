"""A router on the way that passes on no large packets: three network namespaces, which end with the test's process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from vllm_cluster.kernel.hosts.program import python

# Two hosts, `a` here and `b` beyond the router `r`; each link a pair of interfaces.
_NETWORK = """
set -e
mount -t tmpfs tmpfs /run
for ns in r b; do ip netns add $ns; done
ip link add a0 type veth peer name r0 netns r
ip -n r link add r1 type veth peer name b0 netns b
ip addr add 10.9.1.1/24 dev a0
ip -n r addr add 10.9.1.254/24 dev r0
ip -n r addr add 10.9.2.254/24 dev r1
ip -n b addr add 10.9.2.1/24 dev b0
ip link set a0 up
ip -n r link set r0 up
ip -n r link set r1 up mtu "$1"
ip -n b link set b0 up
ip link set lo up
ip route add default via 10.9.1.254
ip -n b route add default via 10.9.2.254
ip netns exec r sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
[ "$2" = reports ] || iptables -I INPUT -p icmp -j DROP
shift 2
exec "$@"
"""
# What both probes report of each other; run where the network is.
_TALK = """
import json, subprocess, sys
argv = [sys.executable, *sys.argv[1:]]
starts = {"a": argv, "b": ["ip", "netns", "exec", "b", *argv]}
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
made = {name: subprocess.Popen(words, **pipes) for name, words in starts.items()}
addresses = {"a": "10.9.1.1", "b": "10.9.2.1"}

def tell(name, row):
    made[name].stdin.write(json.dumps(row) + chr(10))
    made[name].stdin.flush()

for name in made:
    tell(name, {"me": name, "address": addresses[name], "run": "word", "ports": [], "more": 1})
ports = {name: {"address": addresses[name], **json.loads(made[name].stdout.readline())} for name in made}
for name, other in ("ab", "ba"):
    tell(name, {other: ports[other]})
print(json.dumps({name: json.loads(made[name].stdout.readline()) for name in made}))
for probe in made.values():
    probe.stdin.close()
    probe.wait(5)
"""


def seen(mtu: int, icmp: str) -> Any:
    """What two hosts see over a router whose second link has this MTU, which it reports (`reports`) or not."""
    program = python("kernel.links.on_host", "link_test", seconds=60).argv[1:]
    words = ["unshare", "--map-root-user", "--net", "--mount", "sh", "-c", _NETWORK, "network", str(mtu), icmp]
    argv = [*words, sys.executable, "-c", _TALK, *program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("mtu", "icmp", "block", "passes"),
    [
        pytest.param(1500, "reports", "ok", 1500, id="no narrow link"),
        pytest.param(1400, "reports", "ok", 1400, id="a router that is heard", marks=pytest.mark.slow),
        pytest.param(1400, "lost", "hangs", 1400, id="a black hole", marks=pytest.mark.slow),
    ],
)
def test_a_narrow_link_behind_a_router(mtu: int, icmp: str, block: str, passes: int) -> None:
    """Seen from the wide side: the router would fragment what lets it, so no packet of the test may let it."""
    row = seen(mtu, icmp)["a"]
    assert row["bad"] == {}
    assert (row["mtu"], row["passes"], row["block"]) == (1500, passes, block)
