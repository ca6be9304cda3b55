"""Starts two ranks of a script, each in a network of its own, joined by a cable of which each holds one end.

`unshare --net [--map-root-user] python two_networks.py SCRIPT ARGUMENT…` makes rank 0 where it is itself, and rank 1 in another
namespace. The end of the cable is in GLOO_SOCKET_IFNAME. Ends with the first rank that fails.
"""

import os
import subprocess
import sys
import time

ENDS = (("left", "10.99.0.1"), ("right", "10.99.0.2"))
# Waits for a line, by which time the cable is there.
JOIN = 'read -r _ && ip address add {1}/24 dev {0} && ip link set {0} up && ip link set lo up && exec "$@"'


def main(words):
    environment = dict(os.environ, MASTER_ADDR=ENDS[0][1], MASTER_PORT="29500", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    ranks = []
    for rank, end in enumerate(ENDS):
        own_network = ["unshare", "--net"] if rank else []
        command = own_network + ["sh", "-c", JOIN.format(*end), "sh", sys.executable, *words]
        variables = dict(environment, RANK=str(rank), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME=end[0])
        ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=variables))
    while os.readlink("/proc/{}/ns/net".format(ranks[1].pid)) == os.readlink("/proc/self/ns/net"):
        time.sleep(0.01)
    add = ["ip", "link", "add", ENDS[0][0], "type", "veth", "peer", "name", ENDS[1][0], "netns", str(ranks[1].pid)]
    subprocess.run(add, check=True)
    for rank in ranks:
        rank.stdin.write(b"\n")
        rank.stdin.close()
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            for rank in ranks:
                rank.terminate()
            return failed[0] if failed else 0
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
