"""Clients that read: each asks for one page after another, as people and dashboards do. Run as a process of its own.

Usage: python readers.py URL CLIENTS SECONDS PAUSE_S PATH..., tokens on the one line of standard input, which clients take in turn:
one alone may ask a hundred times a second. The last line is one JSON object: of each path the times of all answers, in ms.
"""

import asyncio
import json
import random
import sys
import time
from collections import defaultdict

import httpx

TIMEOUT_S = 60.0


async def read(
    number: int, client: httpx.AsyncClient, token: str, paths: list[str], pause_s: float, end_s: float, told: dict[str, list[float]]
) -> None:
    chosen = random.Random(number)
    await asyncio.sleep(chosen.uniform(0, pause_s))
    while time.monotonic() < end_s:
        path = chosen.choice(paths)
        asked_s = time.monotonic()
        (await client.get(path, headers={"Authorization": f"Bearer {token}"})).raise_for_status()
        told[path].append(1000 * (time.monotonic() - asked_s))
        await asyncio.sleep(pause_s)


async def main(url: str, clients: int, seconds: float, pause_s: float, paths: list[str]) -> None:
    tokens = sys.stdin.readline().split()
    told: dict[str, list[float]] = defaultdict(list)
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
        end_s = time.monotonic() + seconds
        each = ((number, client, tokens[number % len(tokens)]) for number in range(clients))
        await asyncio.gather(*(read(*one, paths, pause_s, end_s, told) for one in each))
    print(json.dumps({path: [round(one, 2) for one in took] for path, took in told.items()}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]))
