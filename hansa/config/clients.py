"""`clients: N` in a federation file: one language as N monolingual clients; data/clients.py deals the rows out."""

from typing import Any


def into_clients(silos: dict[str, Any], seed: int) -> dict[str, Any]:
    """`en: {train: en.jsonl, clients: 8, skew: 0.3}` stands for en-1 … en-8, each with a part of the rows."""
    found: dict[str, Any] = {}
    for name, node in silos.items():
        if isinstance(node, dict) and isinstance(node.get("silos"), dict):
            found[name] = node | {"silos": into_clients(node["silos"], seed)}
        elif isinstance(node, dict) and {"clients", "skew"} & set(node):
            rest = {key: value for key, value in node.items() if key not in ("clients", "skew")}
            clients = node.get("clients", 1)
            if type(clients) is not int or clients < 1:
                raise ValueError(f"silos.{name}.clients is {clients!r}: give the number of clients, at least 1")
            if clients == 1 and "skew" not in node:
                found[name] = rest
                continue
            if clients == 1:
                raise ValueError(f"silos.{name}.skew spreads labels over clients: give 'clients: N', at least 2")
            for number in range(clients):
                part = {"name": name, "number": number, "of": clients, "skew": node.get("skew"), "seed": seed}
                own = (
                    {"sources": [s | {"part": part} for s in rest["sources"]]} if "sources" in rest else {"part": part}
                )
                found[f"{name}-{number + 1}"] = rest | own
        else:
            found[name] = node
    return found
