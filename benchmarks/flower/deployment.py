"""Bytes on the socket of Flower's deployment engine during a run, next to the simulation's counts.

    python -m benchmarks.flower.deployment [--codec noise-floor] [--rounds 2] [--json FILE]

A SuperLink and two SuperNodes on loopback, each node behind a counting TCP proxy (socket_proxy.py).
Every message starts a process, which takes seconds in each round for any model. Each node has its
own ledger. docs/deployment.md describes two hospitals with TLS, keys and their own data.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.flower.flower_app import CLIENT_APP, free_port, private_flower, write_app
from benchmarks.flower.socket_proxy import CountingProxy, counting
from benchmarks.flower.socket_traffic import count_moved
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.messages.byte_lines import read_lines
from fedlsg.simulations.storage.run_directory import RunDir


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """The run's status in Flower, the traffic of each node's proxy, Flower's log, and the run's
    FLWR_HOME.
    """

    status: str
    proxies: tuple[CountingProxy, ...]
    log: str
    home: Path


def deploy(
    plan: Plan,
    folder: Path,
    *,
    nodes: int,
    client_app: str = CLIENT_APP,
    own: Sequence[str] = (),
) -> Deployed:
    """Run the app of ``plan`` on ``nodes`` SuperNodes; app, log and the nodes' ledgers are in
    ``folder``. ``own``: more of each node's config.

    Each node trains on its partition of the plan's workload. Guarantee: as ``private_flower``.
    """
    app = write_app(folder / "app", plan, client_app=client_app)
    with private_flower(folder) as flower, ExitStack() as stack:
        proxies = tuple(stack.enter_context(counting(flower.port)) for _ in range(nodes))
        for index, proxy in enumerate(proxies):
            flower.start(
                "flower-supernode",
                "--insecure",
                "--superlink",
                f"127.0.0.1:{proxy.port}",
                "--port",
                str(free_port()),
                "--node-config",
                " ".join(
                    [
                        node_config(index, nodes, folder, trust=plan.settings.trust),
                        *own[index : index + 1],
                    ]
                ),
            )
        status = flower.run(app)
    return Deployed(
        status=status, proxies=proxies, log=flower.log_file.read_text(), home=flower.home
    )


def node_config(index: int, nodes: int, folder: Path, *, trust: str) -> str:
    """A node config with a budget that no measurement reaches."""
    ledger = folder.resolve() / f"node-{index}"
    budget = "epsilon-max=1000.0 delta-max=1e-5"
    return (
        f"partition-id={index} num-partitions={nodes} ledger-dir='{ledger}' {budget} "
        f"trust='{trust}'"
    )


def measure(settings: Mapping[str, Any]) -> dict[str, Any]:
    """One deployed run: three levels and bytes on the socket of each message, and the nodes' other
    traffic.
    """
    with tempfile.TemporaryDirectory(prefix="deployment-") as folder:
        plan = make_plan(from_mapping(settings))
        directory: RunDir = create(str(Path(folder) / "run"), plan.settings)
        plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
        deployed = deploy(plan, Path(folder) / "flower", nodes=len(plan.terms))
        if deployed.status != "finished:completed":
            raise RuntimeError(f"the run ended as {deployed.status}:\n{deployed.log[-2000:]}")
        counted = list(read_lines(directory.messages))
        seen = [count_moved(proxy.exchanges()) for proxy in deployed.proxies]
    messages = [
        {
            "round": line.round,
            "client": line.client,
            "direction": line.direction,
            "values": line.values_bytes,
            "payload": line.payload_bytes,
            "wire": line.wire_bytes,
            **seen[line.client].messages[str(line.round), line.direction].sizes(),
        }
        for line in counted
    ]
    return {
        "flwr": version("flwr"),
        "settings": dict(settings),
        "messages": messages,
        "besides": [one.besides for one in seen],
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--codec", default="noise-floor")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    settings = {
        "workload": "digits",
        "clients": 2,
        "rounds": given.rounds,
        "sample_rate": 0.05,
        "noise_multiplier": 2.0,
        "codec": given.codec,
    }
    found = measure(settings)
    names = (
        "round",
        "client",
        "direction",
        "values",
        "payload",
        "wire",
        "bodies",
        "socket",
        "back",
        "requests",
    )
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for message in found["messages"]:
        print("| " + " | ".join(str(message[name]) for name in names) + " |")
    for client, besides in enumerate(found["besides"]):
        print(f"client {client}, besides: {besides}")
    if given.json is not None:
        command = shlex.join(["python", "-m", "benchmarks.flower.deployment", *sys.argv[1:]])
        given.json.write_text(json.dumps({"command": command} | found, indent=2) + "\n")


if __name__ == "__main__":
    main()
